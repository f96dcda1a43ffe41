"""Printing answers, checked against text typed by hand."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import TerminalStream

from ftd.cli.answer import Answer, WordWrap, timings


def wrap(*pieces: str, width: int = 15) -> str:
    stream = io.StringIO()
    writer = WordWrap(stream, width)
    for piece in pieces:
        writer.write(piece)
    writer.flush()
    return stream.getvalue()


def test_words_go_to_the_next_line_whole() -> None:
    assert wrap("the sky", " is bl", "ue today") == "the sky is\nblue today"


def test_line_breaks_and_indents_of_the_text_stay() -> None:
    assert wrap("a\n\n    code\nb ") == "a\n\n    code\nb "


def test_a_word_longer_than_a_line_is_left_whole() -> None:
    assert wrap("see http://example.com/long now") == "see\nhttp://example.com/long\nnow"


def test_wide_characters_break_anywhere_and_count_twice() -> None:
    assert wrap("今天天气很好") == "今天天气很\n好"


@given(st.lists(st.text("ab \n\t今", max_size=20)), st.integers(6, 30))
def test_wrapping_loses_nothing_but_blanks_and_does_not_depend_on_the_pieces(
    pieces: list[str], width: int
) -> None:
    text = "".join(pieces)
    wrapped = wrap(*pieces, width=width)
    assert wrapped == wrap(text, width=width)
    assert wrapped.split() == text.split() or "今" in text
    assert "".join(wrapped.split()) == "".join(text.split())


def test_an_answer_ends_with_two_newlines() -> None:
    stream = io.StringIO()
    answer = Answer(stream=stream)
    answer.add("Hel")
    answer.add("lo")
    answer.finish()
    assert stream.getvalue() == "Hello\n\n" and answer.content == "Hello"


def test_thinking_is_marked_off() -> None:
    stream = io.StringIO()
    answer = Answer(stream=stream)
    answer.add("", "hm")
    answer.add("", "m")
    answer.add("yes")
    answer.finish()
    assert stream.getvalue() == "Thinking...\nhmm\n...done thinking.\n\nyes\n\n"
    assert (answer.thinking, answer.content) == ("hmm", "yes")


def test_thinking_can_be_hidden_and_is_still_kept() -> None:
    stream = io.StringIO()
    answer = Answer(stream=stream, hide_thinking=True)
    answer.add("", "hmm")
    answer.add("yes")
    answer.finish()
    assert stream.getvalue() == "yes\n\n" and answer.thinking == "hmm"


def test_marks_are_grey_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = TerminalStream()
    answer = Answer(stream=stream, wordwrap=False)
    answer.add("", "hm")
    answer.finish()
    assert stream.getvalue() == "\x1b[90mThinking...\x1b[0m\nhm\n\x1b[90m...done thinking.\x1b[0m\n\n\n\n"


def test_timings_are_ollamas_lines() -> None:
    final = {
        "total_duration": 512_000_000,
        "load_duration": 12_000_000,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 90_000_000,
        "eval_count": 2,
        "eval_duration": 80_000_000,
    }
    assert timings(final) == (
        "total duration:       512ms\n"
        "load duration:        12ms\n"
        "prompt eval count:    7 token(s)\n"
        "prompt eval duration: 90ms\n"
        "prompt eval rate:     77.78 tokens/s\n"
        "eval count:           2 token(s)\n"
        "eval duration:        80ms\n"
        "eval rate:            25.00 tokens/s"
    )


def test_timings_leave_out_what_is_missing() -> None:
    assert timings({"eval_count": 2}) == "eval count:           2 token(s)"
    assert timings({}) == ""
