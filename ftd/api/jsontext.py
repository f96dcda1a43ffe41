"""JSON as it crosses the wire: read forgivingly, written so that no client cuts a line in two.

Written strings are pure ASCII: U+0085, U+2028 and U+2029 would end a line for clients that split lines by
Python's rules. ``< > &`` are escaped as Ollama does.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ftd.chat.beside import json_pieces
from ftd.errors import InvalidRequest

_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_encoder = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)
_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE_BYTES = re.compile(_SURROGATE.pattern.encode())
# Pairs, halves (the group) and all other escapes
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_BLANKS = " \t\r\n"
_TYPE_WORDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    type(None): "null",
}

_T = TypeVar("_T")


def _refuse_constant(name: str) -> float:
    raise InvalidRequest(f"invalid JSON: {name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidRequest(f"invalid JSON: number is too large: {text:.50}")
    return number


# A larger body is cut into such pieces: Python's other threads rest while one is decoded
PIECE_BYTES = 1 << 20
# Each takes a hundred bytes of memory or more
MAX_VALUES = 2_000_000
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def encode(value: object) -> bytes:
    """Return compact JSON in ASCII without ``< > &``."""
    # outside of strings JSON has none of the three characters, so the whole text may be translated
    return _encoder.encode(value).translate(_ESCAPES).encode("ascii")


def encode_pieces(value: Any) -> bytes:
    """Return the same, encoded in many small calls. Takes long for much of it: call it in a thread."""
    return json_pieces(value, encode)


def parse_body(data: bytes, empty: str = "missing request body") -> "Fields":
    """Return the first JSON value of ``data``, which must be an object; what follows it is ignored.

    After more than PIECE_BYTES nothing may follow. Takes long for much data: call it in a thread.
    """
    try:
        value = _decoded(data, empty) if len(data) <= PIECE_BYTES else _decoded_in_pieces(data)
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"request body is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise InvalidRequest(f"invalid JSON: {exc.msg} at character {exc.pos}") from exc
    except (RecursionError, ValueError) as exc:
        raise InvalidRequest(f"invalid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest(f"request body must be a JSON object, not {kind_of(value)}")
    return Fields(value)


def _decoded(data: bytes, empty: str = "") -> Any:
    text = data.decode("utf-8-sig").lstrip(_BLANKS)
    if not text:
        raise InvalidRequest(empty)
    value, _ = _decoder.raw_decode(text)
    return _without_surrogates(value) if _SURROGATE.search(text) else value


def _decoded_in_pieces(data: bytes) -> Any:
    if data.count(b",") > MAX_VALUES:
        raise InvalidRequest(
            f"request body has more than {MAX_VALUES} values, or commas in its texts", "send it in parts"
        )
    if _SURROGATE_BYTES.search(data):
        data = _ESCAPE.sub(_without_half, data)
    return _of_raw(data.removeprefix(b"\xef\xbb\xbf"))


def _without_half(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[1] else escape[0]


def _of_raw(data: bytes) -> Any:
    """Return the value of JSON; what is large is first taken apart without being decoded."""
    if len(data) > PIECE_BYTES:
        kind = data[: PIECE_BYTES // 2].lstrip()[:1]
        if kind == b"{":
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            return {key: _of_raw(bytes(raw)) for key, raw in fields.items()}
        if kind == b"[":
            return list(_elements(msgspec.json.decode(data, type=list[msgspec.Raw])))
    return _decoded(data)


def _elements(raws: list[msgspec.Raw]) -> Iterator[Any]:
    """Yield the elements of a list, as many at once as make a piece."""
    group: list[bytes] = []
    room = PIECE_BYTES
    for raw in map(bytes, raws):
        if group and len(raw) > room:
            yield from _decoded(b"[" + b",".join(group) + b"]")
            group, room = [], PIECE_BYTES
        if len(raw) > PIECE_BYTES:
            yield _of_raw(raw)
        else:
            group.append(raw)
            room -= len(raw)
    if group:
        yield from _decoded(b"[" + b",".join(group) + b"]")


def _without_surrogates(value: Any) -> Any:
    """Return a value in which halves of characters, which no text can hold, are U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def kind_of(value: object) -> str:
    """Return what JSON calls the type of a value."""
    return _TYPE_WORDS.get(type(value), type(value).__name__)


class Fields:
    """A JSON object from a client: keys match whatever their case, null is absent, wrong types are refused.

    ``where`` is put before the name of a field in errors: ``messages[2].content``.
    """

    __slots__ = ("_by_lower", "_where", "values")

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where
        self._by_lower: dict[str, Any] | None = None

    def get(self, name: str) -> Any:
        """Return the value as it came, None when absent; ``name`` is lower-case."""
        if name in self.values:
            return self.values[name]
        if self._by_lower is None:
            self._by_lower = {key.lower(): value for key, value in self.values.items()}
        return self._by_lower.get(name)

    def _typed(self, name: str, kind: type[_T]) -> _T | None:
        value = self.get(name)
        if value is None or type(value) is kind:
            return value
        raise self.wrong(name, value, _TYPE_WORDS[kind])

    def wrong(self, name: str, value: object, wanted: str) -> InvalidRequest:
        """Return the error for a field of the wrong type."""
        return InvalidRequest(
            f"cannot use {kind_of(value)} for field {self._where}{name}: it must be {wanted}"
        )

    def text(self, name: str) -> str:
        """Return a string, empty when absent."""
        return self._typed(name, str) or ""

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean, ``default`` when absent."""
        value = self._typed(name, bool)
        return default if value is None else value

    def integer(self, name: str) -> int | None:
        """Return an integer (``3.0`` counts, ``3.5`` does not), None when absent."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, value, "an integer")

    def number(self, name: str) -> float | None:
        """Return a number, None when absent."""
        value = self.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, value, "a number")

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object as it came, empty when absent."""
        return self._typed(name, dict) or {}

    def items(self, name: str) -> list[Any]:
        """Return a list as it came, empty when absent."""
        return self._typed(name, list) or []

    def objects(self, name: str) -> Iterator["Fields"]:
        """Yield the elements of a list of objects."""
        for idx, value in enumerate(self.items(name)):
            where = f"{self._where}{name}[{idx}]"
            if not isinstance(value, dict):
                raise InvalidRequest(f"cannot use {kind_of(value)} for {where}: it must be object")
            yield Fields(value, f"{where}.")

    def strings(self, name: str) -> list[str]:
        """Return a list of strings, empty when absent."""
        values = self.items(name)
        if not all(isinstance(value, str) for value in values):
            raise InvalidRequest(f"field {self._where}{name} must be an array of strings")
        return values


def timestamp() -> str:
    """Return now as RFC 3339 in UTC with up to nine digits of fraction: ``2026-08-21T10:00:00.123Z``."""
    seconds, fraction_ns = divmod(time.time_ns(), 10**9)
    date = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{fraction_ns:09d}".rstrip("0").rstrip(".")
    return f"{date}{fraction}Z"


def local_time(when: datetime) -> str:
    """Return a time with the server's own offset and without trailing zeros: ``…T10:00:00.5+02:00``."""
    local = when.astimezone()
    date, fraction, offset = (
        local.strftime("%Y-%m-%dT%H:%M:%S"),
        f"{local.microsecond:06d}",
        local.strftime("%z"),
    )
    fraction = f".{fraction}".rstrip("0").rstrip(".")
    zone = "Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:5]}"
    return f"{date}{fraction}{zone}"
