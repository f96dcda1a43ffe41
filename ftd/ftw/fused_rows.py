"""Which rows of a fused tensor are one of the matrices that it holds.

query gate       [H, 2, C]         of an attention behind a gate: each head's query, then its gate
qkv z            [Hk, Ck + Ck + r*Cv + r*Cv]   of a gated delta net: each key head's query and key, the
                                               values and z of the r value heads that share it
b a              [Hk, r + r]       likewise the two rates of each value head
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one matrix in their order, as (first, count), and how many rows the fused tensor has."""

    runs: tuple[Run, ...]
    stored: int


def rows_of(kind: str, size: Mapping[str, int]) -> Rows:
    """Return where the matrix ``kind`` lies in its fused tensor; ``size`` holds the letters of shapes."""
    key_heads, key = size["G"], size["L"]
    if kind in ("query", "gate"):
        return _every(size["H"], 2 * size["C"], [(size["C"] if kind == "gate" else 0, size["C"])])
    if kind in ("b", "a"):
        shared = size["N"] // key_heads
        return _every(key_heads, 2 * shared, [(shared if kind == "a" else 0, shared)])
    values = size["B"] // key_heads
    span = 2 * (key + values)
    if kind == "z":
        return _every(key_heads, span, [(2 * key + values, values)])
    assert kind == "qkv", kind
    return _every(key_heads, span, [(0, key), (key, key), (2 * key, values)])


def slabs(runs: Iterable[Run], step: int) -> Iterator[Run]:
    """Cut runs into pieces of at most ``step`` rows."""
    for first, count in runs:
        for offset in range(0, count, step):
            yield first + offset, min(step, count - offset)


def _every(heads: int, span: int, parts: list[Run]) -> Rows:
    """Return the parts of all heads, each part's together; a head takes ``span`` rows."""
    runs = tuple((head * span + first, count) for first, count in parts for head in range(heads))
    return Rows(runs, heads * span)
