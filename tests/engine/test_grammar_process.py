"""The process that follows grammars, beside the library in this one; broken frames, a process that fails."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from ftd.chat.schema import grammar_of
from ftd.engine.grammar_library import new_matcher, tokenizer_of
from ftd.engine.grammar_process import GrammarProcess, RemoteMatcher, _Frames, _Server
from ftd.engine.messages import HEADER, Vocabulary

END = 256
VOCABULARY = Vocabulary(tokens=[*(bytes([i]) for i in range(256)), b"<e>"], special_ids=[END], eos_ids=[END])
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
TEXT = grammar_of({**SCHEMA, "additionalProperties": False})


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    process = GrammarProcess(VOCABULARY)
    yield process
    process.close()


def test_every_step_is_that_of_the_library(process: GrammarProcess) -> None:
    here, there = new_matcher(tokenizer_of(VOCABULARY), TEXT), process.compile(TEXT)
    for token in b'{"a": "x"}':
        assert there.compute_bitmask() == here.compute_bitmask()
        assert there.consume_token(token) and here.consume_token(token)
        assert there.compute_ff_tokens() == here.compute_ff_tokens()
        assert there.is_stopped() == here.is_stopped()
    assert there.is_stopped() and not there.is_error()
    assert there.reset() and here.reset()
    assert there.compute_bitmask() == here.compute_bitmask()
    there.drop()


def test_matchers_do_not_disturb_each_other(process: GrammarProcess) -> None:
    """Their masks come as they are computed, and are taken in any order."""
    matchers = [process.compile(grammar_of({"enum": [f"{n}a", f"{n}b"]})) for n in range(6)]
    for n, matcher in enumerate(matchers):
        assert matcher.consume_tokens([*f'"{n}'.encode()])
    masks = {n: matchers[n].compute_bitmask() for n in (3, 0, 5, 1, 4, 2)}
    assert len(set(masks.values())) == 1, "a or b may follow in all of them"
    for n, matcher in reversed(list(enumerate(matchers))):
        assert matcher.consume_token(b"ab"[n % 2])
        assert matcher.compute_ff_tokens() == [ord('"')]
        matcher.drop()
    assert not process._arrived


def test_a_wrong_id_is_an_error_of_its_matcher_alone(process: GrammarProcess) -> None:
    wrong, right = process.compile(TEXT), process.compile(TEXT)
    assert not wrong.consume_token(ord("x"))
    assert wrong.is_error() and wrong.get_error()
    assert wrong.compute_bitmask() == b"" and not wrong.consume_token(ord("{")) and not wrong.reset()
    assert right.consume_token(ord("{")) and not right.is_error()
    for matcher in (wrong, right):
        matcher.drop()


def test_what_is_no_grammar_is_said_when_it_is_compiled(process: GrammarProcess) -> None:
    bad = process.compile("no grammar")
    assert bad.is_error() and "no grammar" in bad.get_error()
    assert not process.is_dead


@pytest.mark.parametrize("moment", ["between answers", "while compiling"])
def test_a_process_that_is_killed_is_noticed(moment: str) -> None:
    process = GrammarProcess(VOCABULARY)
    matcher = process.compile(TEXT)
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    if moment == "while compiling":
        late = process.compile(TEXT)
        assert late.is_error() and late.get_error() == "the process that follows grammars has ended"
    assert not matcher.consume_token(ord("{"))
    assert process.is_dead and "has ended" in matcher.get_error()
    assert matcher.compute_ff_tokens() == [] and matcher.is_stopped()
    matcher.drop()
    process.close()


def test_it_ends_with_the_engine() -> None:
    process = GrammarProcess(VOCABULARY)
    process.compile(TEXT)
    process.close()
    assert process._process.returncode == 0


def frames() -> tuple[_Frames, socket.socket]:
    ours, theirs = socket.socketpair()
    return _Frames(ours), theirs


@pytest.mark.parametrize("kept", range(8))
def test_a_frame_that_is_cut_is_the_end(kept: int) -> None:
    """A process that is killed while it writes leaves the beginning of a frame."""
    ours, theirs = frames()
    whole = HEADER.pack(4) + msgspec.msgpack.encode([1, 2, 3])
    theirs.sendall(whole)
    assert ours.receive() == [1, 2, 3]
    theirs.sendall(whole[:kept])
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def test_values_come_as_they_were_sent_however_long() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = _Frames(ours), _Frames(theirs)
    mask = bytes(range(256)) * 4096
    thread = threading.Thread(target=sender.send, args=(7, "mask", mask, ""))
    thread.start()
    assert receiver.receive() == [7, "mask", mask, ""]
    thread.join()
    sender.close()
    receiver.close()


def test_nobody_waits_for_a_compiler_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket ends, whatever it failed of; else the request would wait for ever."""

    def fail(vocabulary: Vocabulary) -> None:
        raise ZeroDivisionError("a bug of the library")

    monkeypatch.setattr("ftd.engine.grammar_library.tokenizer_of", fail)
    compiling, engine = socket.socketpair()
    following, other = frames()
    server = _Server(_Frames(compiling), following)
    ours = _Frames(engine)
    ours.send(VOCABULARY.tokens, VOCABULARY.special_ids, VOCABULARY.eos_ids)
    ours.send(0, TEXT)
    with pytest.raises(ZeroDivisionError):
        server.compile()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()
    following.close()
    other.close()


def test_a_matcher_in_error_sends_nothing() -> None:
    """Its number was never given to the process, which would not know what to answer."""

    class Silent:
        def tell(self, *values: object) -> None:
            raise AssertionError(f"told {values}")

        answer = tell

    matcher = RemoteMatcher(Silent(), 3, "bad")  # type: ignore[arg-type]
    assert matcher.is_error() and matcher.get_error() == "bad"
    assert matcher.compute_bitmask() == b"" and not matcher.consume_tokens([1]) and not matcher.reset()
