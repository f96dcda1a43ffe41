"""Work that grows with a request: done at once while it is small, else in a thread beside the event loop.

Python's threads take turns every few milliseconds, but one call into C keeps its turn to its end. What works
on text without bound is therefore cut into pieces, none of which takes longer than some tens of milliseconds.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Of text: what takes about a millisecond, and what a single call may get
SMALL_CHARS = 32 << 10
PIECE_CHARS = 1 << 20
# Elements of a list: of which it is taken that each is small, and what a single call may get
MANY = 100
PIECE_ITEMS = 10_000


async def beside(
    num_chars: int,
    function: Callable[_Parameters, _Result],
    *arguments: _Parameters.args,
    **keywords: _Parameters.kwargs,
) -> _Result:
    """Return what a function says of ``num_chars`` of text, or of what takes as long."""
    if num_chars <= SMALL_CHARS:
        return function(*arguments, **keywords)
    return await asyncio.to_thread(function, *arguments, **keywords)


def matches(
    pattern: re.Pattern[str], text: str, longest: int, stride: int = PIECE_CHARS
) -> Iterator[re.Match[str]]:
    """Yield what ``pattern.finditer(text)`` does, in pieces; ``longest``: of what it matches."""
    start = 0
    while start < len(text):
        end = start + stride
        match = pattern.search(text, start, end + longest)
        if match is None or match.start() >= end:
            start = end
        else:
            yield match
            start = match.end()


def json_pieces(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    """Return the JSON of a value, which ``encode`` writes in many small calls instead of one."""
    if isinstance(value, Mapping):
        fields = (encode(str(key)) + b":" + json_pieces(item, encode) for key, item in value.items())
        return b"{" + b",".join(fields) + b"}"
    if not isinstance(value, list) or not value:
        return encode(value)
    if isinstance(value[0], list | Mapping):
        if len(value) > MANY:  # each is small
            return b"[" + b",".join(map(encode, value)) + b"]"
        return b"[" + b",".join(json_pieces(item, encode) for item in value) + b"]"
    starts = range(0, len(value), PIECE_ITEMS)
    return b"[" + b",".join(encode(value[at : at + PIECE_ITEMS])[1:-1] for at in starts) + b"]"
