"""Which rows of a fused tensor are one of the matrices that it holds.

q k v            [Q + W + W]       of an attention: all heads' queries, then their keys, then their values
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
    """Rows of one matrix in a fused tensor of ``heads`` times ``span`` rows: the same ``parts`` of each."""

    heads: int
    span: int
    parts: tuple[Run, ...]

    @property
    def stored(self) -> int:
        """Rows of the fused tensor."""
        return self.heads * self.span

    @property
    def runs(self) -> tuple[Run, ...]:
        """(first, count) of all rows in the matrix's order: the first part of every head, then the second."""
        return tuple((head * self.span + first, n) for first, n in self.parts for head in range(self.heads))


def rows_of(kind: str, size: Mapping[str, int]) -> Rows:
    """Return where the matrix ``kind`` lies in its fused tensor; ``size`` holds the letters of shapes."""
    key_heads, key, head = size["G"], size["L"], size["C"]
    if kind in ("q", "k", "v"):
        queries, keys = size["Q"], size["W"]
        first = {"q": 0, "k": queries, "v": queries + keys}[kind]
        return Rows(1, queries + 2 * keys, ((first, queries if kind == "q" else keys),))
    if kind in ("query", "gate"):
        return Rows(size["H"], 2 * head, ((head if kind == "gate" else 0, head),))
    if kind in ("b", "a"):
        shared = size["N"] // key_heads
        return Rows(key_heads, 2 * shared, ((shared if kind == "a" else 0, shared),))
    values = size["B"] // key_heads
    span = 2 * (key + values)
    if kind == "z":
        return Rows(key_heads, span, ((2 * key + values, values),))
    assert kind == "qkv", kind
    return Rows(key_heads, span, ((0, key), (key, key), (2 * key, values)))


def slabs(runs: Iterable[Run], step: int) -> Iterator[Run]:
    """Cut runs into pieces of at most ``step`` rows."""
    for first, count in runs:
        for offset in range(0, count, step):
            yield first + offset, min(step, count - offset)
