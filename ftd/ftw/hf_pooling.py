"""How the model of a sentence-transformers folder becomes a vector: modules.json and what it names.

    modules.json                 [{"path": "", "type": "…Transformer"}, {"path": "1_Pooling", "type": "…"}, …]
    1_Pooling/config.json        which of a text's token states, or their mean
    sentence_bert_config.json    max_seq_length: texts are cut to it

What it says goes to the metadata under GGUF's words: ``ARCH.pooling_type``, ``ARCH.normalize_embeddings``.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.encoders import POOLINGS

MODULES = "modules.json"
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


class _Module(msgspec.Struct):
    type: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Pooling:
    """pooling: gguf's number. normalise: the model's vectors have length 1. max_tokens: 0 if it says none."""

    pooling: int
    normalise: bool
    max_tokens: int


def pooling_of(checkpoint: Checkpoint) -> Pooling | None:
    """Return what the folder says; None if it is no sentence-transformers model.

    Raises InvalidCheckpoint for files that are missing or damaged, Unsupported for modules that ftd lacks.
    """
    data = checkpoint.side(MODULES)
    if data is None:
        if checkpoint.side("1_Pooling/config.json") is None:
            return None
        modules = [_Module("Pooling", "1_Pooling")]
    else:
        try:
            modules = msgspec.json.decode(data, type=list[_Module])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise InvalidCheckpoint(f"{MODULES} cannot be read: {exc}"[:300]) from exc
    paths = {module.type.rpartition(".")[2]: module.path for module in modules}
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise Unsupported(f"module of {MODULES} is not supported: {unknown[0]:.50}")
    if "Pooling" not in paths:
        return None
    name = f"{paths['Pooling']}/config.json"
    config = checkpoint.json(name)
    if config is None:
        raise InvalidCheckpoint(f"{name} is missing", "give all files of the folder")
    return Pooling(POOLINGS[_mode(config, name)], "Normalize" in paths, _max_tokens(checkpoint))


def _mode(config: dict[str, Any], name: str) -> str:
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        if mode not in _NAMES:
            raise Unsupported(
                f"pooling_mode of {name} is not supported: {mode:.50}", "use mean, cls or lasttoken"
            )
        return _NAMES[mode]
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise Unsupported(
            f"pooling of {name} is not supported: {' '.join(chosen) or 'none'}",
            f"use one of {' '.join(_MODES)}",
        )
    return _MODES[chosen[0]]


def _max_tokens(checkpoint: Checkpoint) -> int:
    length = (checkpoint.json("sentence_bert_config.json") or {}).get("max_seq_length")
    if length is None:
        return 0
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length < 1 << 31:
        raise InvalidCheckpoint(f"max_seq_length of sentence_bert_config.json is no length: {length!r:.50}")
    return length
