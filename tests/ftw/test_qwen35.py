"""Qwen3-Next and Qwen3.5 as Ollama's library has them, against the same model in llama.cpp's words."""

from pathlib import Path
from typing import Any

import gguf_bytes
import numpy as np
import pytest

from ftd.errors import FtdError, InvalidGguf
from ftd.ftw.gguf import TYPES, GgufFile
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.sink import DirectorySink
from tests.engine import hybrid
from tests.engine.test_hybrid_checkpoints import ARCHITECTURES, gguf_model, write_gguf

NUMBERS = {name: kind for kind, (name, _, _) in TYPES.items()}


def files(case: str, folder: Path, pictures: bool = True, **more: Any) -> tuple[Path, Path]:
    """Return a file of llama.cpp's and the same as Ollama has it; ``more`` are settings of the latter."""
    architecture, random = ARCHITECTURES[case], np.random.default_rng(0)
    values, tensors, _ = gguf_model(case, linear_value_head_dim=24)
    theirs, ollamas = folder / "theirs.gguf", folder / "ollamas.gguf"
    write_gguf(theirs, case, values, tensors)
    with GgufFile.open(theirs) as file:
        stored = [
            gguf_bytes.Tensor(
                tensor.name.replace("ssm_dt.bias", "ssm_dt"),
                tensor.dims,
                NUMBERS[tensor.type],
                file.read(tensor).tobytes(),
            )
            for tensor in file.tensors
        ]
        found = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in file.metadata.items()
        }
    heads = found[f"{architecture}.attention.head_count_kv"]
    recurrent = found.pop(f"{architecture}.attention.recurrent_layers")
    found[f"{architecture}.attention.head_count_kv"] = [
        0 if is_recurrent else heads for is_recurrent in recurrent
    ]
    if case != "qwen3_5":
        found[f"{architecture}.norm_top_k_prob"] = True
    found |= {f"{architecture}.{key}": value for key, value in more.items()}
    names = ["mtp.fc.weight", "mtp.layers.0.mlp.gate_proj.weight"]
    if pictures:
        found[f"{architecture}.vision.block_count"] = 1
        names += ["v.blk.0.attn_q.weight", "mm.0.weight"]
    stored += [gguf_bytes.tensor(name, "F32", (4, 8), random) for name in names]
    ollamas.write_bytes(gguf_bytes.gguf(found, stored))
    return theirs, ollamas


def imported(path: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters of an imported file, and the digests of its weights."""
    config = import_gguf([path], DirectorySink(folder)).config
    return dict(config.hyperparameters), [blob.digest for blob in config.blobs]


@pytest.mark.parametrize("case", hybrid.CASES)
def test_ollamas_files_are_the_same_model(case: str, tmp_path: Path) -> None:
    more = {"feed_forward_length": 0} if case == "qwen3_5_moe" else {}
    theirs, ollamas = files(case, tmp_path, **more)
    wanted, got = imported(theirs, tmp_path), imported(ollamas, tmp_path)
    differing = {key for key in wanted[0] | got[0] if got[0].get(key) != wanted[0].get(key)}
    assert got[1] == wanted[1] and differing == ({"intermediate_size"} if more else set())
    assert got[0]["linear_heads_tiled"] is (case != "qwen3_next")


def test_value_heads_are_not_tiled_where_a_file_says_so(tmp_path: Path) -> None:
    _, ollamas = files("qwen3_5", tmp_path, **{"ssm.v_head_reordered": False})
    assert imported(ollamas, tmp_path)[0]["linear_heads_tiled"] is False


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention.head_count_kv": [0, 0, 0, 0]}, "head_count_kv differs"),
        ({"attention.head_count_kv": [0, 2, 0, 1]}, "head_count_kv differs"),
        ({"attention.head_count_kv": [0, 2]}, "recurrent_layers has 2 entries"),
        ({"ssm.v_head_reordered": 1}, "v_head_reordered is not a bool"),
    ],
)
def test_files_that_cannot_be_are_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, ollamas = files("qwen3_5", tmp_path, **more)
    with pytest.raises(FtdError, match=message):
        imported(ollamas, tmp_path)


def test_pictures_are_unknown_where_the_file_has_none(tmp_path: Path) -> None:
    _, ollamas = files("qwen3_5", tmp_path, pictures=False)
    assert imported(ollamas, tmp_path)[0]
    with GgufFile.open(ollamas) as file:
        stored = [
            gguf_bytes.Tensor(t.name, t.dims, NUMBERS[t.type], file.read(t).tobytes()) for t in file.tensors
        ]
        found = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in file.metadata.items()
        }
    stored.append(gguf_bytes.tensor("v.blk.0.attn_q.weight", "F32", (4, 8), np.random.default_rng(0)))
    ollamas.write_bytes(gguf_bytes.gguf(found, stored))
    with pytest.raises(InvalidGguf, match=r"1 tensors do not belong .* v\.blk\.0\.attn_q\.weight"):
        imported(ollamas, tmp_path)
