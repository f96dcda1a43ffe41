"""Files of sentence-transformers folders written by hand, as the published ones are."""

import json
from pathlib import Path
from typing import Any

import checkpoint_bytes
import pytest

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.hf_pooling import Pooling, pooling_of

TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
MEAN = {"word_embedding_dimension": 384, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def found(folder: Path, **files: Any) -> Pooling | None:
    """Return what the folder with these JSON files says; ``__`` stands for a slash."""
    config, tensors = checkpoint_bytes.llama()
    paths = checkpoint_bytes.save(folder, config, tensors)
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        paths[str(path.relative_to(folder))] = path
    with Checkpoint(paths) as checkpoint:
        return pooling_of(checkpoint)


def test_a_model_without_these_files_says_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) is None


def test_mean_normalised_and_cut(tmp_path: Path) -> None:
    said = found(
        tmp_path,
        modules=[TRANSFORMER, POOLING, NORMALIZE],
        **{"1_Pooling__config": MEAN},
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": False},
    )
    assert said == Pooling(1, True, 256)


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"pooling_mode": "mean"}, 1),
    ],
)
def test_modes(tmp_path: Path, config: dict[str, Any], number: int) -> None:
    assert found(tmp_path, modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": config}) == Pooling(
        number, False, 0
    )


def test_the_folder_of_the_pooling_alone_is_enough(tmp_path: Path) -> None:
    assert found(tmp_path, **{"1_Pooling__config": MEAN}) == Pooling(1, False, 0)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"modules": [TRANSFORMER, POOLING]}, InvalidCheckpoint, r"1_Pooling/config\.json is missing"),
        ({"modules": "["}, InvalidCheckpoint, r"modules\.json cannot be read"),
        ({"modules": [{"path": "x"}]}, InvalidCheckpoint, r"modules\.json cannot be read"),
        ({"modules": [{"type": "a.b.Dense", "path": "2_Dense"}]}, Unsupported, "Dense"),
        (
            {"1_Pooling__config": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}},
            Unsupported,
            "pooling_mode_max_tokens pooling_mode_mean_tokens",
        ),
        ({"1_Pooling__config": {}}, Unsupported, "is not supported: none"),
        ({"1_Pooling__config": {"pooling_mode": "max"}}, Unsupported, "max"),
        (
            {"1_Pooling__config": MEAN, "sentence_bert_config": {"max_seq_length": "x"}},
            InvalidCheckpoint,
            "max_seq_length",
        ),
    ],
)
def test_refusals(tmp_path: Path, files: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        found(tmp_path, **files)
