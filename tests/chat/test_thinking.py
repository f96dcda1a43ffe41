"""Checked against the vectors of the reference page, and against the uncut text for every cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.thinking import ThinkingSplitter, tail_len


def split(pieces: list[str], inside: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter("<think>", "</think>", inside)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part.thinking for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<think> internal </think> world"], ("internal ", "world")),
        (["<think>a</think><think>b</think>c"], ("a", "<think>b</think>c")),
        (["  abc <think>def</think> ghi"], ("", "  abc <think>def</think> ghi")),
        (["<think>abc</th", "ing>def", "ghi</thi", "nk>jkl"], ("abc</thing>defghi", "jkl")),
        (["<think>", "\n", "</think>", "\n\n", "Hi"], ("", "Hi")),
        ([" \n<th", "ink>", " a"], ("a", "")),
        (["<thin"], ("", "<thin")),
        ([], ("", "")),
    ],
)
def test_vectors(pieces: list[str], expected: tuple[str, str]) -> None:
    assert split(pieces) == expected


def test_inside_starts_with_thinking() -> None:
    assert split(["\nhm", "m</think>\n\nso"], inside=True) == ("hmm", "so")


alphabet = st.sampled_from(["<think>", "</think>", "<", ">", "/", "think", " ", "\n", "a"])


@given(st.lists(alphabet, max_size=10).map("".join), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_any_cut_gives_the_same(text: str, cuts: list[int], inside: bool) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert split(pieces, inside) == split([text], inside) == split(list(text), inside)


@pytest.mark.parametrize(("text", "length"), [("ab<", 1), ("<thin", 5), ("<think>", 0), ("", 0), ("x", 0)])
def test_tail_len(text: str, length: int) -> None:
    assert tail_len(text, "<think>") == length
