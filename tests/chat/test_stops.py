"""Checked against a search of the whole text, for every way of cutting it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.stops import StopMatcher
from ftd.errors import InvalidOption

words = st.text("ab", min_size=1, max_size=4)


def whole(stops: list[str], text: str) -> tuple[str, bool]:
    """Return the text before the stop string that is complete first, the longest if several end there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def streamed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown, stopped = "", False
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.flush(), stopped


@given(st.lists(words, max_size=4), st.lists(st.text("ab", max_size=5), max_size=8))
def test_any_cut_gives_what_the_whole_text_gives(stops: list[str], pieces: list[str]) -> None:
    assert streamed(stops, pieces) == whole(stops, "".join(pieces))


@given(st.lists(words, min_size=1, max_size=3), st.text("ab", max_size=12))
def test_no_more_is_held_back_than_may_still_become_a_stop(stops: list[str], text: str) -> None:
    shown, stopped = StopMatcher(stops).push(text)
    held = text[len(shown) :]
    if not stopped:
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


def test_a_stop_over_several_tokens_is_removed() -> None:
    assert streamed(["<|im_end|>"], ["Hi", "<|im", "_en", "d|>", "junk"]) == ("Hi", True)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", True)
    assert matcher.push("c") == ("", True)
    assert matcher.flush() == ""


def test_empty_stops_match_nothing() -> None:
    assert streamed(["", ""], ["abc"]) == ("abc", False)


def test_a_hostile_stop_takes_linear_time() -> None:
    matcher = StopMatcher(["a" * 20_000 + "b"])
    started = time.process_time()
    for _ in range(200):
        matcher.push("a" * 1000)
    assert time.process_time() - started < 2


def test_too_many_stops_are_refused() -> None:
    with pytest.raises(InvalidOption, match="65536"):
        StopMatcher(["x" * 40_000, "y" * 40_000])
