"""Vocabularies as the library of grammars gets them: usual ones, and such as no model should have."""

import json

import numpy as np
import pytest

from ftd.chat.schema import grammar_of
from ftd.engine.grammar import unpacked
from ftd.engine.grammar_library import MAX_LEXER_STATES, new_matcher, tokenizer_of
from ftd.engine.messages import Vocabulary

BYTES = [bytes([number]) for number in range(256)]
AB = '%llguidance {}\nstart: "ab"'


def allowed(vocabulary: Vocabulary, text: str, ids: list[int]) -> set[int]:
    """Return which ids of a vocabulary may follow ``ids`` in a grammar."""
    matcher = new_matcher(tokenizer_of(vocabulary), text)
    assert not matcher.is_error(), matcher.get_error()
    for token in ids:
        assert matcher.consume_token(token), matcher.get_error()
    bits = unpacked(matcher.compute_bitmask(), len(vocabulary.tokens))
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize(
    ("vocabulary", "first", "end"),
    [
        (Vocabulary(tokens=[*BYTES, b"<e>"], special_ids=[256], eos_ids=[256]), {ord("a")}, {256}),
        (Vocabulary(tokens=[*BYTES, b"<e>", b"<f>"], special_ids=[256, 257], eos_ids=[256, 257]), {97}, None),
        # where one text is left, the vocabulary's own cut of it is
        (Vocabulary(tokens=[*BYTES, b"ab", b"abc", b"<e>"], special_ids=[258], eos_ids=[258]), {256}, {258}),
        # ids without bytes, as models have behind their last; twice the same; one that no text needs
        (Vocabulary(tokens=[*BYTES, b"", b"", b"<e>"], special_ids=[258], eos_ids=[258]), {97}, {258}),
        (Vocabulary(tokens=[*BYTES, b"a", b"a", b"<e>"], special_ids=[258], eos_ids=[258]), {97}, {258}),
        (Vocabulary(tokens=BYTES), {97}, set()),
        (Vocabulary(tokens=BYTES, eos_ids=[256, 300]), {97}, set()),
        (Vocabulary(tokens=[*BYTES, b"<e>"], special_ids=[256], eos_ids=[256, 999]), {97}, {256}),
        # a special token whose text is that of bytes is none of them
        (Vocabulary(tokens=[*BYTES, b"ab"], special_ids=[256], eos_ids=[256]), {97}, {256}),
    ],
)
def test_what_may_begin_and_what_may_end(
    vocabulary: Vocabulary, first: set[int], end: set[int] | None
) -> None:
    assert allowed(vocabulary, AB, []) == first
    found = allowed(vocabulary, AB, list(b"ab"))
    assert found == end if end is not None else found and found <= {256, 257}


def test_special_tokens_come_by_their_ids_alone() -> None:
    vocabulary = Vocabulary(tokens=[*BYTES, b"<call>", b"<e>"], special_ids=[256, 257], eos_ids=[257])
    assert allowed(vocabulary, "%llguidance {}\nstart: <[256]>", []) == {256}
    assert allowed(vocabulary, '%llguidance {}\nstart: "<call>"', []) == {ord("<")}


def test_forced_text_is_cut_as_greedily_as_possible() -> None:
    """Where one text is left, the library has the vocabulary cut it, and allows no other cut."""
    vocabulary = Vocabulary(
        tokens=[*BYTES, b"he", b"hell", b"hello", b" wor", b"<e>"], special_ids=[260], eos_ids=[260]
    )
    matcher = new_matcher(tokenizer_of(vocabulary), '%llguidance {}\nstart: "hello world"')
    assert matcher.compute_ff_tokens() == [258, 259, ord("l"), ord("d")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Empty grammar"),
        ("garbage", "Expected token ':'"),
        ("{", "EOF"),
        ('{"grammars":[{"json_schema":{"type":"thing"}}]}', "Invalid type: thing"),
        ("%llguidance {}\nstart: <[99999]>", "too large: 99999"),
        ("%llguidance {}\nstart: nothing", "nothing"),
        ("%llguidance {}\nstart: " + "(" * 100_000, "too deeply nested"),
        (json.dumps({"grammars": [{"lark_grammar": 5}]}), ""),
    ],
)
def test_what_is_no_grammar_is_an_error_of_its_matcher(text: str, reason: str) -> None:
    vocabulary = Vocabulary(tokens=[*BYTES, b"<e>"], special_ids=[256], eos_ids=[256])
    matcher = new_matcher(tokenizer_of(vocabulary), text)
    assert matcher.is_error() and reason in matcher.get_error()
    assert not matcher.consume_token(97)


@pytest.mark.slow
def test_automata_are_bounded() -> None:
    """A regular expression whose automaton doubles with every character ends in an error, not in swap."""
    vocabulary = Vocabulary(tokens=[*BYTES, b"<e>"], special_ids=[256], eos_ids=[256])
    pattern = {"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}
    matcher = new_matcher(tokenizer_of(vocabulary), grammar_of(pattern))
    matcher.compute_bitmask()
    rng = np.random.default_rng(5)
    for number in range(MAX_LEXER_STATES):
        if not matcher.consume_token(ord('"') if number == 0 else 97 + int(rng.integers(2))):
            break
        matcher.compute_bitmask()
    assert matcher.is_error()
    assert "states" in matcher.get_error() or "limit" in matcher.get_error(), matcher.get_error()
