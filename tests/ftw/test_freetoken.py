"""FreeToken's FTW version 1: the same blobs as from the checkpoint that it was made of; hostile indexes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest
from freetoken_bytes import converted

from ftd.errors import FtdError, InvalidCheckpoint, Unsupported
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink


def two_layers() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model of two layers with experts."""
    config, first = checkpoint_bytes.mixtral()
    random = np.random.default_rng(9)
    second = {
        name.replace("layers.0", "layers.1"): checkpoint_bytes.bf16(random, *array.shape)
        for name, array in first.items()
        if "layers.0" in name
    }
    return config | {"num_hidden_layers": 2}, first | second


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 8192])
@pytest.mark.parametrize("quantization", [None, "q8_0"])
def test_the_blobs_are_those_of_the_checkpoint_it_was_made_of(
    flat: bool, shard_bytes: int, quantization: str | None, sink: DirectorySink, tmp_path: Path
) -> None:
    config, arrays = two_layers()
    wanted = import_safetensors(
        checkpoint_bytes.save(tmp_path / "hf", config, arrays), sink, quantization=quantization
    )
    files = converted(arrays, flat).save(tmp_path / "ftw1", config, shard_bytes)
    ours = import_safetensors(files, sink, quantization=quantization)
    assert [blob.digest for blob in ours.blobs] == [blob.digest for blob in wanted.blobs]
    assert ours.config.tensors == wanted.config.tensors
    assert ours.config.hyperparameters == wanted.config.hyperparameters
    assert ours.config.parameter_count == wanted.config.parameter_count
    assert ours.config.provenance["source"] == "ftw"


def test_a_dense_model(sink: DirectorySink, tmp_path: Path) -> None:
    config, arrays = checkpoint_bytes.llama()
    wanted = import_safetensors(checkpoint_bytes.save(tmp_path / "hf", config, arrays), sink)
    ours = import_safetensors(converted(arrays).save(tmp_path / "ftw1", config), sink)
    assert [blob.digest for blob in ours.blobs] == [blob.digest for blob in wanted.blobs]


def first_tensor(folder: Path, **changes: Any) -> None:
    """Change the entry of the first tensor."""
    change_index(folder, lambda index: index["tensors"][0].update(changes))


def change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "freetoken_weight.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda f: (f / "freetoken_weight.json").write_text("{"), InvalidCheckpoint, "is broken"),
        (lambda f: (f / "freetoken_weight.json").write_text("[]"), InvalidCheckpoint, "is broken"),
        (lambda f: change_index(f, lambda i: i.update(version=2)), Unsupported, "not FTW version 1"),
        (lambda f: change_index(f, lambda i: i.update(format="x")), Unsupported, "not FTW version 1: 'x'"),
        (lambda f: change_index(f, lambda i: i.update(shards=[])), InvalidCheckpoint, "0 shards"),
        (lambda f: change_index(f, lambda i: i["shards"].pop()), InvalidCheckpoint, "does not lie at"),
        (
            lambda f: change_index(f, lambda i: i["shards"].pop(0)),
            InvalidCheckpoint,
            "the one before it ends",
        ),
        (
            lambda f: change_index(f, lambda i: i["shards"][0].update(file="../etc")),
            InvalidCheckpoint,
            "shard '../etc' is missing",
        ),
        (
            lambda f: (f / "freetoken-00001.ftw").write_bytes(b"x"),
            InvalidCheckpoint,
            "has 1 bytes instead of",
        ),
        (
            lambda f: change_index(f, lambda i: i["shards"][1].update(nbytes=1 << 62)),
            InvalidCheckpoint,
            "freetoken-00001.ftw has",
        ),
        (lambda f: first_tensor(f, dtype="complex64"), InvalidCheckpoint, "unknown dtype: 'complex64'"),
        (lambda f: first_tensor(f, name=""), InvalidCheckpoint, "tensor '' has"),
        (lambda f: first_tensor(f, kind="kv"), InvalidCheckpoint, "unknown kind: 'kv'"),
        (lambda f: first_tensor(f, shape=[-1, 4]), InvalidCheckpoint, "impossible shape"),
        (lambda f: first_tensor(f, shape=[1 << 40, 1 << 40]), InvalidCheckpoint, "does not lie at"),
        (lambda f: first_tensor(f, global_off=-4096), InvalidCheckpoint, "does not lie at -4096"),
        (lambda f: first_tensor(f, global_off=1 << 62), InvalidCheckpoint, "does not lie at"),
        (lambda f: first_tensor(f, global_off=4096), InvalidCheckpoint, "there twice or overlaps"),
        (
            lambda f: change_index(f, lambda i: i["tensors"].append(i["tensors"][0])),
            InvalidCheckpoint,
            "there twice or overlaps",
        ),
        (
            lambda f: change_index(f, lambda i: i["tensors"].pop()),
            InvalidCheckpoint,
            "bank down#L00001 is missing",
        ),
        (
            lambda f: change_index(f, lambda i: i["tensors"][-1].update(name="down#L00002")),
            InvalidCheckpoint,
            "bank down#L00002 belongs to none of 2 layers",
        ),
        (
            lambda f: change_index(f, lambda i: i["tensors"][-1].update(name="up#L00001")),
            InvalidCheckpoint,
            "bank down#L00001 is missing",
        ),
        (
            lambda f: change_index(f, lambda i: i["tensors"][-1].update(name="down")),
            InvalidCheckpoint,
            "bank down#L00000 is BF16 ",
        ),
        (
            lambda f: change_index(f, lambda i: i.update(quant_format="nvfp4_marlin")),
            Unsupported,
            "kernel that ftd does not have: 'nvfp4_marlin'",
        ),
        (
            lambda f: change_index(f, lambda i: i.update(quant_format=None)),
            Unsupported,
            "does not have: None",
        ),
        (
            lambda f: change_index(f, lambda i: i.update(quant_format="fp8_block")),
            Unsupported,
            "no blocks of 128",
        ),
        (
            lambda f: change_index(f, lambda i: i.update(quant_format="ds_fp4")),
            InvalidCheckpoint,
            "bank gate_up_packed#L00000 is missing",
        ),
        (lambda f: (f / "config.json").unlink(), InvalidCheckpoint, "config.json is missing"),
        (
            lambda f: (f / "freetoken_weight.json").unlink(),
            InvalidCheckpoint,
            "freetoken_weight.json is missing",
        ),
    ],
)
def test_a_folder_with_one_fault_is_refused_and_leaves_nothing(
    change: Callable[[Path], object], error: type[FtdError], said: str, sink: DirectorySink, tmp_path: Path
) -> None:
    config, arrays = two_layers()
    folder = tmp_path / "ftw1"
    converted(arrays).save(folder, config, 1 << 16)
    change(folder)
    with pytest.raises(error, match=said):
        import_safetensors({path.name: path for path in folder.iterdir()}, sink)
    assert list(sink.directory.iterdir()) == []


def test_another_number_of_experts_is_refused_by_name(sink: DirectorySink, tmp_path: Path) -> None:
    config, arrays = two_layers()
    for flat, said in ((False, "bank gate_up#L00000 is BF16"), (True, "bank gate_up of shape")):
        folder = converted(arrays, flat)
        folder.banks = {name: bank[:-1] for name, bank in folder.banks.items()}
        with pytest.raises(InvalidCheckpoint, match=said):
            import_safetensors(folder.save(tmp_path / str(flat), config), sink)


def test_rows_that_q_k_and_v_cannot_share_are_refused(sink: DirectorySink, tmp_path: Path) -> None:
    config, arrays = checkpoint_bytes.llama()
    folder = converted(arrays)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    folder.weights[name] = folder.weights[name][:-1]
    with pytest.raises(
        InvalidCheckpoint, match=r"rows of model.layers.0.self_attn.qkv_proj.weight are not shared"
    ):
        import_safetensors(folder.save(tmp_path / "a", config), sink)
    with pytest.raises(InvalidCheckpoint, match=r"num_attention_heads of config.json is not between"):
        import_safetensors(
            converted(arrays).save(tmp_path / "b", config | {"num_attention_heads": "4"}), sink
        )
