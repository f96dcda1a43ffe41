"""Long work leaves the event loop, and is cut into pieces that say the same as the whole."""

import json
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat import beside as module
from ftd.chat.beside import SMALL_CHARS, beside, json_pieces, matches

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


async def test_only_long_work_leaves_the_loop() -> None:
    here = threading.get_ident()
    assert await beside(SMALL_CHARS, threading.get_ident) == here
    assert await beside(SMALL_CHARS + 1, threading.get_ident) != here


async def test_what_long_work_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await beside(SMALL_CHARS + 1, int, "x")


@given(st.text("ab<|>", max_size=60), st.integers(1, 20))
def test_matches_are_those_of_the_whole_text(text: str, stride: int) -> None:
    pattern = re.compile(r"<\|ab\|>|<a>|b")
    found = [match.span() for match in matches(pattern, text, len("<|ab|>"), stride)]
    assert found == [match.span() for match in pattern.finditer(text)]


@given(VALUES)
def test_json_in_pieces_says_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY", 2)
        patch.setattr(module, "PIECE_ITEMS", 3)
        assert json.loads(json_pieces(value, lambda part: json.dumps(part).encode())) == value
