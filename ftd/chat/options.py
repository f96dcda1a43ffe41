"""Request options and Modelfile parameters: one table of names, types and defaults, one function that merges.

Precedence: request > Modelfile > built-in; lists replace, they do not merge. JSON floats are cut to integers
where an integer is meant, null is skipped, and names that older programs still send are ignored, with a
warning in the log.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ftd import log
from ftd.errors import InvalidOption

_log = logging.getLogger(__name__)

Kind = Literal["int", "float", "bool", "strings", "device"]

SAMPLING: dict[str, Kind] = {
    "temperature": "float",
    "top_k": "int",
    "top_p": "float",
    "min_p": "float",
    "typical_p": "float",
    "repeat_last_n": "int",
    "repeat_penalty": "float",
    "presence_penalty": "float",
    "frequency_penalty": "float",
    "seed": "int",
}
OPTIONS: dict[str, Kind] = SAMPLING | {
    "num_ctx": "int",
    "num_batch": "int",
    "device": "device",
    "num_gpu": "int",
    "main_gpu": "int",
    "use_mmap": "bool",
    "num_thread": "int",
    "draft_num_predict": "int",
    "num_keep": "int",
    "num_predict": "int",
    "stop": "strings",
}
# Still sent by clients and found in old Modelfiles; they change nothing
WITHOUT_EFFECT = frozenset(
    (
        *("mirostat", "mirostat_eta", "mirostat_tau", "tfs_z", "low_vram", "f16_kv", "vocab_only"),
        *("use_mlock", "logits_all", "numa", "penalize_newline", "embedding_only", "num_gqa"),
        *("rope_frequency_base", "rope_frequency_scale"),
    )
)
MIN_CONTEXT_TOKENS = 4
DEVICES = ("auto", "cpu", "cuda")
_TYPE_WORDS: dict[Kind, str] = {
    "int": "integer", "float": "float32", "bool": "boolean", "strings": "array", "device": "auto, cpu or cuda"
}  # fmt: skip
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a request runs with. ``sampling`` holds the fields of SamplingParams that were set, ready for it.

    num_ctx: tokens, None for the default window; num_predict: tokens, negative for no limit; num_thread: 0
    automatic; device: auto, cpu or cuda, empty where it does not matter (a num_gpu of 0 means cpu).
    """

    sampling: dict[str, Any] = {}
    num_ctx: int | None = None
    num_predict: int = -1
    num_keep: int = 4
    stop: tuple[str, ...] = ()
    num_thread: int = 0
    device: str = ""
    num_batch: int | None = None


def merge(request: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None = None) -> Options:
    """Merge a request's options over a model's parameters; raise InvalidOption on a value of a wrong type."""
    values = check(parameters or {}) | check(request or {})
    sampling = {name: _in_range(name, values[name]) for name in SAMPLING if name in values}
    if values.get("num_ctx", 0) <= 0:
        values.pop("num_ctx", None)
    context = values.get("num_ctx")
    return Options(
        sampling=sampling,
        num_ctx=None if context is None else max(context, MIN_CONTEXT_TOKENS),
        num_predict=values.get("num_predict", -1),
        num_keep=values.get("num_keep", 4),
        stop=tuple(values.get("stop", ())),
        num_thread=max(0, values.get("num_thread", 0)),
        device=values.get("device", "cpu" if values.get("num_gpu") == 0 else ""),
        num_batch=values.get("num_batch"),
    )


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known options of ``values`` in the types of the table; other names are only logged."""
    typed: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in OPTIONS:
            typed[name] = _typed(name, value)
        else:
            event = "option has no effect" if name in WITHOUT_EFFECT else "option unknown"
            _log.warning(log.fields(event, name=str(name)[:80]))
    return typed


def _typed(name: str, value: Any) -> Any:
    kind = OPTIONS[name]
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind in ("int", "float") and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or abs(value) >= 2**63:
            raise InvalidOption(f'option "{name}" is out of range: {value}')
        return math.trunc(value) if kind == "int" else value
    if kind == "device" and value in DEVICES:
        return value
    if kind == "strings" and isinstance(value, str):
        return [value]
    if kind == "strings" and isinstance(value, list | tuple):
        if not all(isinstance(item, str) for item in value):
            raise InvalidOption(f'option "{name}" must be of an array of strings')
        return list(value)
    raise InvalidOption(f'option "{name}" must be of type {_TYPE_WORDS[kind]}', f"got {value!r:.100}")


def _in_range(name: str, value: Any) -> Any:
    """Bring a sampling value into the range where it means something, as Ollama does."""
    if name == "seed":
        return None if value == -1 else value % 2**63
    if name in ("top_p", "min_p", "typical_p"):
        return min(max(float(value), 0.0), 1.0)
    if name == "temperature":
        return max(float(value), 0.0)
    if name == "repeat_penalty":
        if value < 0:
            raise InvalidOption(f'option "repeat_penalty" must not be negative: {value}')
        return float(value) or 1.0
    return value if OPTIONS[name] == "int" else float(value)


def parse_parameter(name: str, text: str) -> Any:
    """Return the value of ``PARAMETER name text``; None for a name without effect. Raise InvalidOption."""
    if name in WITHOUT_EFFECT:
        return None
    kind = OPTIONS.get(name)
    if kind is None:
        raise InvalidOption(f"unknown parameter '{name}'", f"known parameters: {' '.join(sorted(OPTIONS))}")
    if kind == "strings":
        return text
    try:
        if kind == "bool":
            if text not in _TRUE + _FALSE:
                raise ValueError
            return text in _TRUE
        if kind == "device":
            if text not in DEVICES:
                raise ValueError
            return text
        number = float(text) if kind == "float" else int(text)
        if not math.isfinite(number) or abs(number) >= 2**63:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidOption(f"invalid {kind} value [{text:.100}]", f"for parameter {name}") from None
    return number
