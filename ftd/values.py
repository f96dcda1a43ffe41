"""What the strings of settings mean: each function reads one kind, or raises InvalidOption that says why."""

import math
import re
from pathlib import Path

from ftd import units
from ftd.errors import InvalidOption

_EXPERTS = re.compile(r"auto|fill|cpu|split=(0(\.\d+)?|1(\.0+)?)", re.ASCII)
_REGISTRY = re.compile(
    r"([^\s/:@\[\]]+|\[[0-9a-f:.]+\]|[0-9a-f:]*::?[0-9a-f:.]*)(:\d{1,5})?", re.ASCII | re.I
)
_SCALES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAX_BYTES = 2**60


def word(value: str) -> str:
    """Return the text without blanks and quotes around it."""
    return value.strip().strip("\"'")


def integer(value: str) -> int:
    """Read a whole number."""
    try:
        return int(word(value))
    except ValueError:
        raise InvalidOption(f"not an integer: {value!r}") from None


def boolean(value: str) -> bool:
    """Read yes or no as Ollama's variables say it."""
    text = word(value).lower()
    if text in ("1", "true", "yes", "on", "t"):
        return True
    if text in ("0", "false", "no", "off", "f", ""):
        return False
    raise InvalidOption(f"not a boolean: {value!r}", "use 1 or 0")


def host(value: str) -> str:
    """Refuse a scheme or port that is none; Ollama's variable means the default then."""
    text, hint = word(value), "write it as 127.0.0.1:11434 or http://127.0.0.1:11434"
    scheme, separator, rest = text.rpartition("://")
    if (separator and scheme not in ("http", "https")) or re.search(r"\s", text):
        raise InvalidOption(f"not an address: {text!r}", hint)
    authority = rest.partition("/")[0]
    _, bracket, tail = authority.rpartition("]")
    port = tail.partition(":")[2] if bracket or tail.count(":") == 1 else ""
    if port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidOption(f"not a port: {port!r}", hint)
    return text


def names(value: str) -> tuple[str, ...]:
    """Read words with commas between them."""
    return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)


def origins(value: str) -> tuple[str, ...]:
    """Read web origins; a browser's has a scheme, so one without matches none."""
    found = names(value)
    for origin in found:
        if re.search(r"\s", origin) or ("://" not in origin and "*" not in origin):
            raise InvalidOption(f"not a web origin: {origin!r}", "write it as https://example.com, or *")
    return found


def registries(value: str) -> tuple[str, ...]:
    """Read hosts, each with a port or without."""
    found = names(value)
    for name in found:
        if not _REGISTRY.fullmatch(name):
            raise InvalidOption(f"not a host: {name!r}", "write it as example.com or 10.0.0.1:5000")
    return found


def keep_alive(value: str) -> int:
    """Read a duration, or a number of seconds; a negative one is for ever."""
    text = word(value)
    number = text.removeprefix("-").replace(".", "", 1)
    is_number = number.isascii() and number.isdigit()
    ns = units.parse_keep_alive(float(text) if is_number else text)
    return 0 if ns is None else ns


def size(value: str) -> int:
    """Read a number of bytes with a binary unit or without."""
    text = word(value).upper().removesuffix("B").removesuffix("I")
    scale = _SCALES.get(text[-1:], 1)
    try:
        count = float(text if scale == 1 else text[:-1]) * scale
    except ValueError:
        count = math.nan
    if not 0 <= count <= _MAX_BYTES:
        raise InvalidOption(f"not a size: {value!r}", "write it as 24G or 512M")
    return int(count)


def folder(value: str) -> Path:
    """Read the path of a folder, which need not be there yet."""
    text = word(value)
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise InvalidOption(f"not a folder: {text!r}", "there is no such user") from None
    existing = next((each for each in (path, *path.parents) if each.exists()), path)
    if existing.exists() and not existing.is_dir():
        raise InvalidOption(f"not a folder: {text!r}", f"{existing} is a file: name a folder")
    return path


def experts(value: str) -> str:
    """Read what becomes of experts beyond the device's memory."""
    text = word(value)
    if not _EXPERTS.fullmatch(text):
        raise InvalidOption(f"not auto, fill, cpu or split=F (0 to 1): {text!r}")
    return text


def ollama_debug(value: str) -> str:
    """Read Ollama's OLLAMA_DEBUG as a log level."""
    return "debug" if word(value) not in ("", "0", "false") else "info"
