"""Constraints without an engine: which ids they allow, what they keep, and processes that die."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from ftd.chat.schema import grammar_of
from ftd.engine.grammar import Constraint, Grammars
from ftd.engine.messages import Grammar, Vocabulary
from ftd.errors import InvalidOption
from tests.engine.grammars import GRAMMAR, OPEN, TOKENS, VOCABULARY


@pytest.fixture(scope="module")
def shared_grammars() -> Iterator[Grammars]:
    """Constraints without an engine."""
    grammars = Grammars()
    grammars.learn(VOCABULARY)
    yield grammars
    grammars.close()


@pytest.fixture
def grammars(shared_grammars: Grammars) -> Grammars:
    """The same without the matchers that other tests left."""
    shared_grammars._idle.clear()
    return shared_grammars


def allowed(constraint: Constraint) -> set[int]:
    """Return the ids that a constraint allows now."""
    bits = constraint.allowed(160)
    return set(range(160)) if bits is None else set(np.flatnonzero(bits).tolist())


def feed(constraint: Constraint, text: bytes) -> bool:
    """Consume a text byte by byte; return whether it is complete."""
    for byte in text:
        allowed(constraint)
        constraint.consume(byte)
    return constraint.is_complete


def test_mask_forbids_all_but_what_continues(grammars: Grammars) -> None:
    constraint = grammars.begin(GRAMMAR)
    assert allowed(constraint) == {ord("{"), TOKENS.index(b'{"')}
    assert feed(constraint, b'{"name": "a", "size": "small"}')


def test_output_is_free_until_the_tag_wherever_it_is_cut(grammars: Grammars) -> None:
    tag = TOKENS.index(b"</think>")
    for tokens in ([*b"so {x</think>"], [*b"so {x", tag], [*b"</thin</think>"]):
        constraint = grammars.begin(Grammar(text=GRAMMAR.text, free_until=b"</think>"))
        for token in tokens:
            assert len(allowed(constraint)) == 160
            constraint.consume(token)
            assert not constraint.is_complete
        assert allowed(constraint) == {ord("{"), TOKENS.index(b'{"')}


def test_detour_is_taken_only_at_the_beginning(grammars: Grammars) -> None:
    grammar = Grammar(text=GRAMMAR.text, detours={OPEN: b"</think>", 157: b""})
    constraint = grammars.begin(grammar)
    assert allowed(constraint) == {ord("{"), TOKENS.index(b'{"'), OPEN, 157}
    constraint.consume(OPEN)
    feed(constraint, b"hm</think>")
    assert allowed(constraint) == {ord("{"), TOKENS.index(b'{"'), OPEN, 157}
    feed(constraint, b"{")
    assert OPEN not in allowed(constraint)
    inside = grammars.begin(Grammar(text=GRAMMAR.text, detours={ord("<"): b""}))
    feed(inside, b'{"name":"<')
    assert len(allowed(inside)) < 160  # a string that holds such an id is no detour
    call = grammars.begin(grammar)
    allowed(call)
    call.consume(157)
    assert not feed(call, b"anything </think> {} at all")
    assert len(allowed(call)) == 160


def test_matcher_of_an_ended_request_serves_the_next(grammars: Grammars) -> None:
    first = grammars.begin(GRAMMAR)
    assert feed(first, b'{"name":"a","size":"small"}')
    first.close()
    assert list(grammars._idle) == [GRAMMAR.text]
    second = grammars.begin(GRAMMAR)
    assert allowed(second) == {ord("{"), TOKENS.index(b'{"')}
    assert not grammars._idle
    assert feed(second, b'{"name":"b","size":"large"}')


def test_kept_matchers_are_bounded(grammars: Grammars) -> None:
    for number in range(20):
        constraint = grammars.begin(Grammar(text=grammar_of({"const": number})))
        allowed(constraint)
        constraint.close()
    assert sum(map(len, grammars._idle.values())) == 16


def test_a_grammar_in_use_is_none_of_the_kept(grammars: Grammars) -> None:
    """Its place in the order of use must not be taken for the oldest kept matcher."""
    first = grammars.begin(GRAMMAR)
    allowed(first)
    first.close()
    used = grammars.begin(GRAMMAR)
    allowed(used)
    for number in range(20):
        constraint = grammars.begin(Grammar(text=grammar_of({"const": number})))
        allowed(constraint)
        constraint.close()
    assert feed(used, b'{"name":"a","size":"small"}')


def test_a_request_that_ends_before_it_begins_leaves_its_matcher(grammars: Grammars) -> None:
    """Nobody else could drop it, so that the process would keep one for each such request."""
    early = grammars.begin(GRAMMAR)
    assert early.wait(60)
    early.close()
    assert list(grammars._idle) == [GRAMMAR.text]
    bad = grammars.begin(Grammar(text="no grammar"))
    assert bad.wait(60)
    bad.close()
    assert list(grammars._idle) == [GRAMMAR.text]
    assert feed(grammars.begin(GRAMMAR), b'{"name":"a","size":"small"}')


@pytest.mark.parametrize("vocab_size", [160, 161, 200, 1000])
def test_vocabulary_smaller_than_the_logits_forbids_the_rest(vocab_size: int) -> None:
    grammars = Grammars()
    grammars.learn(VOCABULARY)
    bits = grammars.begin(Grammar(text=grammar_of("json"))).allowed(vocab_size)
    assert bits is not None and bits.shape == (vocab_size,)
    assert set(np.flatnonzero(bits).tolist()) == {ord("{"), TOKENS.index(b'{"')}
    grammars.close()


def test_vocabulary_larger_than_the_logits_is_cut(grammars: Grammars) -> None:
    bits = grammars.begin(GRAMMAR).allowed(125)
    assert bits is not None and np.flatnonzero(bits).tolist() == [ord("{")]


def test_vocabulary_without_an_end_can_end_too() -> None:
    grammars = Grammars()
    grammars.learn(Vocabulary(tokens=TOKENS))
    constraint = grammars.begin(Grammar(text=grammar_of("json")))
    assert feed(constraint, b"{}")
    grammars.close()


def test_runaway_schema_is_an_error(grammars: Grammars) -> None:
    loop = {"$ref": "#/$defs/X", "$defs": {"X": {"$ref": "#/$defs/X"}}}  # which the daemon refuses
    constraint = grammars.begin(Grammar(text=json.dumps({"grammars": [{"json_schema": loop}]})))
    for _ in range(2):
        with pytest.raises(InvalidOption, match="format cannot be enforced"):
            allowed(constraint)
        with pytest.raises(InvalidOption, match="format cannot be enforced"):
            constraint.prepare()


def test_preparing_changes_nothing(grammars: Grammars) -> None:
    constraint = grammars.begin(GRAMMAR)
    constraint.prepare()
    for byte in b'{"name":"a","size":"small"':
        assert byte in allowed(constraint)
        constraint.consume(byte)
        assert not constraint.is_complete
        constraint.prepare()
        constraint.prepare()
    assert allowed(constraint) == {ord(char) for char in "}, \n"}


def test_a_process_that_dies_fails_those_it_served_and_is_replaced() -> None:
    grammars = Grammars()
    grammars.learn(VOCABULARY)
    constraint = grammars.begin(GRAMMAR)
    assert allowed(constraint) == {ord("{"), TOKENS.index(b'{"')}
    assert grammars._process is not None
    grammars._process._process.kill()
    grammars._process._process.wait()
    with pytest.raises(InvalidOption, match="has ended"):
        feed(constraint, b"{")
    constraint.close()
    assert feed(grammars.begin(GRAMMAR), b'{"name":"a","size":"small"}')
    grammars.close()


def test_nothing_is_left_of_matchers_that_are_dropped() -> None:
    """Masks on their way are taken in, whoever leaves in the middle of a text."""
    grammars = Grammars()
    grammars.learn(VOCABULARY)
    constraints = [grammars.begin(Grammar(text=grammar_of({"const": f"x{number}"}))) for number in range(40)]
    for constraint in constraints:
        allowed(constraint)
        constraint.consume(ord('"'))
    for constraint in constraints:
        constraint.close()
    assert grammars._process is not None and not grammars._process._arrived
    grammars.close()
