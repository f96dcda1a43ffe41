"""Constrained output of a random model: whatever it prefers, its text is in the grammar, and others are not
disturbed.
"""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ftd.chat.schema import grammar_of
from ftd.engine.grammar import Constraint, Grammars
from ftd.engine.messages import Grammar, Load, SamplingParams, Tokens
from ftd.errors import InvalidRequest, PromptTooLong
from tests.engine import tiny
from tests.engine.grammars import END, GRAMMAR, TOKENS, VOCABULARY
from tests.engine.serving import Serving, write_ftw

PROMPT = [10, 20, 30]


def text_of(ids: list[int]) -> str:
    """Return the text of ids."""
    return b"".join(TOKENS[token] for token in ids).decode()


def hot(seed: int) -> SamplingParams:
    """Return parameters that draw almost any id."""
    return SamplingParams(temperature=2.0, top_k=0, top_p=1.0, seed=seed)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The message that loads a random model."""
    return write_ftw(tiny.make("llama"), tmp_path_factory.mktemp("ftw"))


@pytest.fixture(scope="module")
def shared(load: Load) -> Iterator[Serving]:
    """An engine that has loaded it and knows its vocabulary."""
    serving = Serving(load)
    serving.engine.learn(VOCABULARY)
    yield serving
    serving.close()


@pytest.fixture
def serving(shared: Serving) -> Iterator[Serving]:
    """The same without what it sent to other tests; nothing may be left to do."""
    shared.sent.clear()
    yield shared
    assert not shared.engine.has_work


def test_random_text_is_in_the_grammar_and_ends_with_it(serving: Serving) -> None:
    for first in range(0, 12, 4):
        started = [
            serving.start(PROMPT, grammar=GRAMMAR, sampling=hot(seed), stop_ids=[END], max_tokens=90)
            for seed in range(first, first + 4)
        ]
        serving.run()
        for request_id in started:
            value = json.loads(text_of(serving.tokens(request_id)))
            assert value["size"] in ("small", "large") and len(value["name"]) <= 8
            assert value.keys() <= {"name", "size", "tags"} and len(value.get("tags", [])) <= 3
            finished = serving.finished(request_id)
            assert finished.reason == "stop"
            assert finished.output_tokens == len(serving.tokens(request_id))


def test_free_sequences_of_a_batch_are_not_disturbed(serving: Serving) -> None:
    alone = serving.start(PROMPT, sampling=hot(7), max_tokens=30)
    serving.run()
    bound = serving.start(PROMPT, grammar=GRAMMAR, sampling=hot(1), max_tokens=60)
    beside = serving.start(PROMPT, sampling=hot(7), max_tokens=30)
    again = serving.start(PROMPT, grammar=GRAMMAR, sampling=hot(1), max_tokens=60)
    serving.run()
    assert serving.tokens(beside) == serving.tokens(alone)
    assert serving.tokens(again) == serving.tokens(bound)
    assert "name" in json.loads(text_of(serving.tokens(bound)))


def test_limit_cuts_a_text_short(serving: Serving) -> None:
    request_id = serving.start(PROMPT, grammar=GRAMMAR, max_tokens=3)
    serving.run()
    assert serving.finished(request_id).reason == "length"
    assert text_of(serving.tokens(request_id)).startswith("{")


def test_whole_text_at_the_limit_has_stopped(serving: Serving) -> None:
    grammar = Grammar(text=grammar_of({"const": True}))
    request_id = serving.start(PROMPT, grammar=grammar, max_tokens=1, sampling=SamplingParams(seed=3))
    other_id = serving.start(PROMPT, grammar=grammar, max_tokens=4, stop_ids=[])
    serving.run()
    assert text_of(serving.tokens(other_id)) == "true"
    assert serving.finished(other_id).reason == "stop"
    assert serving.finished(request_id).output_tokens == 1


def test_forced_ids_change_speed_but_no_text(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {f"a_long_name_{number}": {"enum": ["one value", 7]} for number in range(2)}
    schema = {"type": "object", "properties": wide, "required": list(wide), "additionalProperties": False}
    grammar = Grammar(text=grammar_of(schema))

    def texts() -> tuple[list[list[int]], int]:
        before = serving.engine.stats().steps
        started = [
            serving.start(PROMPT, grammar=grammar, sampling=hot(seed), stop_ids=[END], max_tokens=limit)
            for seed, limit in ((1, 0), (2, 0), (3, 25), (4, 26))
        ]
        serving.run()
        assert [serving.finished(each).reason for each in started] == ["stop", "stop", "length", "length"]
        return [serving.tokens(each) for each in started], serving.engine.stats().steps - before

    fast, few_steps = texts()
    monkeypatch.setattr(Constraint, "consume_forced", lambda self: [])
    slow, many_steps = texts()
    assert fast == slow
    assert few_steps < many_steps / 2
    assert [len(ids) for ids in fast[2:]] == [25, 26]
    json.loads(text_of(fast[0]))


def test_logprobs_of_forced_ids_are_there(serving: Serving) -> None:
    request_id = serving.start(
        PROMPT, grammar=Grammar(text=grammar_of({"const": "a text"})), num_logprobs=0, stop_ids=[END]
    )
    serving.run()
    entries = [m.logprobs for m in serving.sent if isinstance(m, Tokens) and m.request_id == request_id]
    assert len(entries) == len(serving.tokens(request_id)) > 5 and all(entries)


def test_number_may_end_only_where_it_is_one(serving: Serving) -> None:
    grammar = Grammar(text=grammar_of({"type": "integer", "minimum": 10, "maximum": 99}))
    for seed in range(4):
        request_id = serving.start(PROMPT, grammar=grammar, sampling=hot(seed), stop_ids=[END])
        serving.run()
        assert 10 <= int(text_of(serving.tokens(request_id))) <= 99


def test_logprobs_are_those_of_the_model(serving: Serving) -> None:
    free_id = serving.start(PROMPT, max_tokens=1, num_logprobs=5)
    bound_id = serving.start(PROMPT, grammar=GRAMMAR, max_tokens=1, num_logprobs=5)
    serving.run()
    tokens = {m.request_id: m for m in serving.sent if hasattr(m, "logprobs")}
    assert tokens[bound_id].logprobs[0].top == tokens[free_id].logprobs[0].top
    assert tokens[bound_id].logprobs[0].logprob < tokens[free_id].logprobs[0].logprob


def test_cancelled_request_leaves_the_engine_whole(serving: Serving) -> None:
    request_id = serving.start(PROMPT, grammar=GRAMMAR)
    serving.run(steps=3)
    serving.engine.cancel(request_id)
    later_id = serving.start(PROMPT, grammar=GRAMMAR, sampling=hot(5), max_tokens=90)
    serving.run()
    assert serving.finished(request_id).reason == "abort"
    json.loads(text_of(serving.tokens(later_id)))


def test_nobody_waits_for_the_compiler_of_another(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    go, compiled = threading.Event(), Grammars.matcher

    def slow(grammars: Grammars, text: str) -> Any:
        assert go.wait(60)
        return compiled(grammars, text)

    monkeypatch.setattr(Grammars, "matcher", slow)
    bound = serving.start(PROMPT, grammar=GRAMMAR, sampling=hot(1), max_tokens=90)
    dropped = serving.start(PROMPT, grammar=GRAMMAR)
    beside = serving.start(PROMPT, max_tokens=5)
    serving.run(steps=20)
    assert serving.finished(beside).output_tokens == 5
    assert serving.engine.has_work and serving.engine.stats().waiting == 2
    serving.engine.cancel(dropped)
    assert serving.finished(dropped).reason == "abort"
    go.set()
    serving.run()
    json.loads(text_of(serving.tokens(bound)))


def test_prompt_too_long_is_refused_at_once(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its grammar is not compiled: nobody would give the matcher back."""
    begun: list[Grammar] = []
    monkeypatch.setattr(Grammars, "begin", lambda self, grammar: begun.append(grammar))
    with pytest.raises(PromptTooLong):
        serving.start(list(range(96)), grammar=GRAMMAR)
    assert not serving.engine.has_work and not begun


@pytest.mark.parametrize("text", ["", "{", '{"grammars":[{"json_schema":{"type":"thing"}}]}'])
def test_bad_grammar_fails_its_request_alone(serving: Serving, text: str) -> None:
    beside = serving.start(PROMPT, max_tokens=5)
    bad = serving.start(PROMPT, grammar=Grammar(text=text))
    serving.run()
    assert len(serving.tokens(beside)) == 5
    (failed,) = serving.failed()
    assert (failed.kind, failed.request_id) == ("InvalidOption", bad)
    assert failed.message.startswith("format cannot be enforced: ")


def test_vocabulary_comes_first_and_once(load: Load) -> None:
    serving = Serving(load)
    with pytest.raises(InvalidRequest, match="vocabulary first"):
        serving.start(PROMPT, grammar=GRAMMAR)
    serving.engine.learn(VOCABULARY)
    with pytest.raises(InvalidRequest, match="already"):
        serving.engine.learn(VOCABULARY)
    serving.close()
