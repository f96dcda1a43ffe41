"""The engine as a process: driven over a real socket, checked against transformers and for how it ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from examples import first_quick

from ftd.chat.schema import grammar_of
from ftd.engine import messages
from ftd.engine.messages import (
    Cancel,
    Down,
    Embed,
    Embedded,
    Failed,
    Finished,
    Generate,
    GetStats,
    Grammar,
    Grow,
    Load,
    Progress,
    Ready,
    SamplingParams,
    Stats,
    Tokens,
    Unload,
    Up,
    Vocabulary,
)
from tests.engine import tiny
from tests.engine.serving import GREEDY, write_ftw

# Runs the worker as `-m ftd.engine` does, then fails if torch came in by any way.
PROGRAM = """
import sys
from ftd.engine import worker
status = worker.main(sys.argv[1:])
foreign = {"torch", "triton", "transformers", "aiohttp", "llguidance"} & set(sys.modules)
sys.exit(f"imported: {foreign}" if foreign else status)
"""
PROMPT = [5, 17, 99, 3, 42]


class Process:
    """A worker process and the daemon's end of its socket."""

    def __init__(self, *arguments: str) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        theirs.close()
        self.stream = self.socket.makefile("rb")

    def send(self, *sent: Down) -> None:
        self.socket.sendall(b"".join(messages.encode(message) for message in sent))

    def receive(self) -> Up:
        (size,) = messages.HEADER.unpack(self.stream.read(messages.HEADER.size))
        return messages.decode_up(self.stream.read(size))

    def receive_until(self, kind: type[Up]) -> list[Up]:
        received = [self.receive()]
        while not isinstance(received[-1], kind):
            received.append(self.receive())
        return received

    def wait(self) -> tuple[int, str]:
        """Return the exit status and standard error."""
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            text = stream.read().decode()
        return self.process.wait(60), text

    def close(self) -> None:
        self.stream.close()
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


@pytest.fixture(scope="module")
def oracle() -> tiny.Tiny:
    """The random model."""
    return tiny.make("llama")


@pytest.fixture(scope="module")
def load(oracle: tiny.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The message that loads it."""
    return write_ftw(oracle, tmp_path_factory.mktemp("ftw"))


@pytest.fixture
def worker() -> Iterator[Process]:
    """A worker that has not been told to load."""
    process = Process()
    yield process
    process.close()


def test_a_whole_life(worker: Process, load: Load, oracle: tiny.Tiny) -> None:
    worker.send(load)
    received = worker.receive_until(Ready)
    assert isinstance(received[0], Progress)
    assert received[-2] == Progress(
        completed_bytes=received[0].total_bytes, total_bytes=received[0].total_bytes
    )

    worker.send(Generate(request_id=1, ids=PROMPT, max_tokens=8, sampling=GREEDY))
    received = worker.receive_until(Finished)
    ids = list(PROMPT)
    for _ in range(8):
        ids.append(int(oracle.logits(ids)[-1].argmax()))
    assert [m.ids for m in received if isinstance(m, Tokens)] == [[token] for token in ids[5:]]

    worker.send(Generate(request_id=2, ids=[160]), GetStats())
    failed, stats = worker.receive(), worker.receive()
    assert failed == Failed(
        kind="InvalidRequest", message="token id must be between 0 and 159: 160", request_id=2
    )
    assert isinstance(stats, Stats) and (stats.decode_tokens, stats.running) == (7, 0)

    worker.send(Embed(request_id=3, sequences=[PROMPT]))
    assert isinstance(worker.receive(), Embedded)
    worker.send(Generate(request_id=4, ids=PROMPT, max_tokens=-1, sampling=SamplingParams(seed=1)))
    assert isinstance(worker.receive(), Tokens)
    worker.send(Cancel(request_id=4))
    finished = worker.receive_until(Finished)[-1]
    assert isinstance(finished, Finished) and finished.reason == "abort"

    worker.send(Unload())
    status, text = worker.wait()
    assert status == 0, text
    assert "load done" in text and worker.stream.read() == b""


def test_grammars_are_followed_elsewhere(worker: Process, load: Load) -> None:
    """The library, whose lock would stop all threads here, is never imported: ``PROGRAM`` looks."""
    worker.send(load, Vocabulary(tokens=[bytes([byte]) for byte in range(160)], eos_ids=[3]))
    worker.receive_until(Ready)
    grammar = Grammar(text=grammar_of({"const": "ab"}))
    worker.send(Generate(request_id=1, ids=PROMPT, grammar=grammar, stop_ids=[3]))
    received = worker.receive_until(Finished)
    assert bytes(token for m in received if isinstance(m, Tokens) for token in m.ids) == b'"ab"'
    worker.send(Unload())
    status, text = worker.wait()
    assert status == 0, text


def test_it_grows_and_goes_on_or_ends_with_the_reason(worker: Process, load: Load) -> None:
    worker.send(load)
    worker.receive_until(Ready)
    worker.send(Grow(context_tokens=128), Generate(request_id=1, ids=PROMPT * 20, max_tokens=3))
    ready, *_, finished = worker.receive_until(Finished)
    assert isinstance(ready, Ready) and ready.context_tokens == 128
    assert isinstance(finished, Finished) and finished.prompt_tokens == 100
    worker.send(Generate(request_id=2, ids=PROMPT, max_tokens=50), Grow(context_tokens=200))
    failed = worker.receive()
    assert isinstance(failed, Failed) and failed.request_id is None and "between requests" in failed.message
    assert worker.wait()[0] == 1


def test_it_ends_when_the_daemon_is_gone(worker: Process, load: Load) -> None:
    worker.send(load)
    worker.receive_until(Ready)
    worker.send(Generate(request_id=1, ids=PROMPT, max_tokens=-1))
    worker.receive()
    worker.socket.shutdown(socket.SHUT_RDWR)
    status, text = worker.wait()
    assert status == 0, text


def test_it_ends_when_the_daemon_leaves_before_or_during_the_load(worker: Process, load: Load) -> None:
    worker.send(load)
    worker.socket.shutdown(socket.SHUT_RDWR)
    status, text = worker.wait()
    assert status == 0, text


def test_a_load_that_fails_is_reported(worker: Process, load: Load, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"{}")
    worker.send(msgspec.structs.replace(load, config_path=str(tmp_path / "config")))
    failed = worker.receive()
    assert isinstance(failed, Failed) and (failed.kind, failed.request_id) == ("InvalidFtw", None)
    assert worker.wait()[0] == 1


def test_a_daemon_of_another_version_is_told_to_restart(worker: Process, load: Load) -> None:
    """As after an upgrade under a daemon that runs on."""
    worker.send(msgspec.structs.replace(load, version="0.0.9"))
    failed = worker.receive()
    assert isinstance(failed, Failed) and failed.hint == "restart ftd serve"
    assert failed.message.startswith("the daemon that runs is ftd 0.0.9, the program on the disk is ")
    assert worker.wait()[0] == 1


@pytest.mark.parametrize(
    "frame", first_quick(messages.encode(GetStats()), b"\x01\x00\x00\x00\xc1", b"\xff\xff\xff\xff")
)
def test_what_is_no_load_ends_it_with_a_reason(worker: Process, frame: bytes) -> None:
    worker.socket.sendall(frame)
    failed = worker.receive()
    assert isinstance(failed, Failed) and failed.kind == "EngineError"
    assert worker.wait()[0] == 1


def test_wrong_arguments_print_the_usage() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ftd.engine", "x"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: ")
