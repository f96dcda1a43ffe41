"""ftd.ftw.checkpoint: shards and their index must say the same; side files are bounded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import pytest

from ftd.errors import InvalidCheckpoint
from ftd.ftw import checkpoint as module
from ftd.ftw.checkpoint import INDEX, Checkpoint

Files = dict[str, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A checkpoint of three shards with an index."""
    return checkpoint_bytes.save(tmp_path / "hf", *checkpoint_bytes.llama(), shards=3)


def test_shards_are_one_set_of_tensors(files: Files) -> None:
    _, wanted = checkpoint_bytes.llama()
    with Checkpoint(files) as checkpoint:
        assert set(checkpoint.tensors) == set(wanted)
        for name, tensor in checkpoint.tensors.items():
            assert tensor.read(0, tensor.num_bytes).tobytes() == wanted[name].tobytes()
        assert len(checkpoint.shard_names) == 3


def test_without_an_index_all_shards_count(files: Files) -> None:
    del files[INDEX]
    with Checkpoint(files) as checkpoint:
        assert set(checkpoint.tensors) == set(checkpoint_bytes.llama()[1])


def test_files_of_other_folders_are_not_this_models(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    inside = {f"m/{name}": path for name, path in files.items()}
    with Checkpoint({**inside, "m/1_Pooling/config.json": tmp_path / "other.json"}) as checkpoint:
        assert checkpoint.config["model_type"] == "llama"


def edit_index(change: Callable[[dict[str, Any]], None]) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        index = json.loads(files[INDEX].read_text())
        change(index)
        files[INDEX].write_text(json.dumps(index))

    return edit


def second_shard(files: Files) -> str:
    return next(name for name in files if name.startswith("model-00002"))


def without_index_and_shard(files: Files) -> None:
    del files[INDEX]
    del files[second_shard(files)]


def twice(files: Files) -> None:
    del files[INDEX]
    files[second_shard(files)] = files["model-00001-of-00003.safetensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.pop(second_shard(files)), "shard model-00002-of-00003.safetensors is missing"),
        (without_index_and_shard, "model has 3 shards, 2 are given"),
        (twice, "two shards have the same tensor"),
        (edit_index(lambda index: index["weight_map"].pop("model.norm.weight")), "model.norm.weight in"),
        (
            edit_index(lambda index: index["weight_map"].update(ghost="model-00001-of-00003.safetensors")),
            "tensor ghost is missing in model-00001",
        ),
        (
            edit_index(
                lambda index: index["weight_map"].update(
                    {"model.embed_tokens.weight": "model-00002-of-00003.safetensors"}
                )
            ),
            "does not place tensor model.embed_tokens.weight in model-00001",
        ),
        (edit_index(lambda index: index["weight_map"].update(a="../../etc/passwd")), "passwd is missing"),
        (edit_index(lambda index: index["weight_map"].update(a=3)), "places 'a' in no file: 3"),
        (edit_index(lambda index: index.update(weight_map=[])), "has no weight_map"),
        (lambda files: files[INDEX].write_text("[]"), "is not a JSON object"),
        (lambda files: files[INDEX].write_bytes(b"\xff"), "is not a JSON object"),
        (lambda files: files["config.json"].write_text("[" * 100_000), "config.json is not a JSON object"),
        (lambda files: files.pop("config.json"), "config.json is missing"),
        (lambda files: files["config.json"].unlink(), "cannot read config.json"),
        (lambda files: files.update({"sub/model.safetensors": Path("x")}), "lie in 2 folders"),
        (
            lambda files: [files.pop(name) for name in list(files) if "safetensors" in name],
            "lie in 0 folders",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(
    files: Files, change: Callable[[Files], object], message: str
) -> None:
    change(files)
    with pytest.raises(InvalidCheckpoint, match=message):
        Checkpoint(files)


def test_side_files_are_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SIDE_BYTES", 10)
    with pytest.raises(InvalidCheckpoint, match=r"config\.json is larger than 10 bytes"):
        Checkpoint(files)
