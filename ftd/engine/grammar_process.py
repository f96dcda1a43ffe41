"""The process that follows grammars, so that neither building its vocabulary nor a mask holds a step up.

    engine ── vocabulary, grammars ──▶ compiling: a thread          ◀── done, or what is wrong
           ── ids that were chosen ──▶ following: the main thread   ◀── what is forced next, then the mask

The library builds the tree of a vocabulary with Python's lock held, for up to seconds: no thread of the
engine could run meanwhile. A mask is sent as soon as it is computed and read when the next id is chosen,
one forward pass later. Frames are a length (u32) and msgpack. The process ends when the engine's ends of its
sockets close.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ftd import environment
from ftd.engine.messages import HEADER, Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

_DEAD = "the process that follows grammars has ended"
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class _Frames:
    """One end of a socket; one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def send(self, *values: Any) -> None:
        body = _encode(values)
        self.sock.sendall(HEADER.pack(len(body)) + body)

    def receive(self) -> list[Any]:
        """Return the next frame; EOFError when there is none any more."""
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise EOFError
        (size,) = HEADER.unpack(header)
        body = self._file.read(size)
        if len(body) < size:
            raise EOFError
        found: list[Any] = _decode(body)
        return found

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.sock.close()


class GrammarProcess:
    """The engine's hold on the process: ``compile`` in a helper thread, all else in that of the step loop."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self._compiling, self._following = (_Frames(ours) for ours, _ in pairs)
        theirs = [sock.fileno() for _, sock in pairs]
        self._process = subprocess.Popen(
            [*environment.module_command("ftd.engine.grammar_process"), *map(str, theirs)],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _, sock in pairs:
            sock.close()
        self._ids = itertools.count()
        self._arrived: dict[tuple[int, str], list[Any]] = {}
        self.is_dead = False
        self._compiling.send(vocabulary.tokens, vocabulary.special_ids, vocabulary.eos_ids)

    def compile(self, text: str) -> RemoteMatcher:
        """Return a matcher at the start of a grammar, in error if it is none."""
        number = next(self._ids)
        try:
            self._compiling.send(number, text)
            (error,) = self._compiling.receive()
        except (OSError, EOFError):
            self.is_dead, error = True, _DEAD
        return RemoteMatcher(self, number, error)

    def tell(self, number: int, kind: str, *values: Any) -> None:
        """Send a command for one matcher."""
        with suppress(OSError):  # a dead process is noticed where an answer is awaited
            self._following.send(number, kind, *values)

    def answer(self, number: int, kind: str) -> list[Any] | None:
        """Wait for an answer for one matcher; None if the process is dead."""
        while not self.is_dead:
            if found := self._arrived.pop((number, kind), None):
                return found
            try:
                owner, what, *values = self._following.receive()
            except (OSError, EOFError):
                self.is_dead = True
                break
            self._arrived[(owner, what)] = values
        return None

    def close(self) -> None:
        """End the process."""
        self._compiling.close()
        self._following.close()
        self._process.wait()


class RemoteMatcher:
    """A matcher in the process, with as much of the library's interface as constraints use."""

    def __init__(self, process: GrammarProcess, number: int, error: str) -> None:
        self._process = process
        self._number = number
        self._error = error
        self._forced: list[int] = []
        self._is_stopped = False
        self._mask_comes = False  # one was or will be sent that nobody has taken

    def is_error(self) -> bool:
        return bool(self._error)

    def get_error(self) -> str:
        return self._error

    def is_stopped(self) -> bool:
        return self._is_stopped

    def compute_bitmask(self) -> bytes:
        """Return the mask, which mostly has arrived; empty in error."""
        if self._error:
            return b""
        if not self._mask_comes:
            self._process.tell(self._number, "mask")
        self._mask_comes = False
        mask, self._error = self._process.answer(self._number, "mask") or (b"", _DEAD)
        return bytes(mask)

    def consume_token(self, token: int) -> bool:
        return self.consume_tokens([token])

    def consume_tokens(self, tokens: list[int]) -> bool:
        """Move on; what can only follow is known then, and the mask is on its way unless something can."""
        if self._error:
            return False
        if self._mask_comes:  # nobody looked at it
            self.compute_bitmask()
        self._process.tell(self._number, "consume", tokens)
        answer = self._process.answer(self._number, "consumed")
        self._error, self._forced, self._is_stopped = answer or (_DEAD, [], True)
        self._mask_comes = not (self._error or self._forced or self._is_stopped)
        return not self._error

    def compute_ff_tokens(self) -> list[int]:
        return self._forced

    def reset(self) -> bool:
        """Go back to the start, for the next request."""
        if self._error:
            return False
        if self._mask_comes:
            self.compute_bitmask()
        self._process.tell(self._number, "reset")
        (self._error,) = self._process.answer(self._number, "reset") or (_DEAD,)
        self._forced, self._is_stopped = [], False
        return not self._error

    def drop(self) -> None:
        """Forget the matcher, and the mask that may be on its way."""
        if self._mask_comes:
            self.compute_bitmask()
        self._process.tell(self._number, "drop")


class _Server:
    """The process's side."""

    def __init__(self, compiling: _Frames, following: _Frames) -> None:
        self._compiling, self._following = compiling, following
        self._matchers: dict[int, LLMatcher] = {}

    def compile(self) -> None:
        """Compile what comes until the socket ends; runs in a thread of its own.

        Whatever else ends it closes the socket, so that the engine does not wait for an answer.
        """
        with closing(self._compiling), suppress(EOFError, OSError):
            from ftd.engine import grammar_library  # in this process alone

            tokens, special_ids, eos_ids = self._compiling.receive()
            vocabulary = Vocabulary(tokens=tokens, special_ids=special_ids, eos_ids=eos_ids)
            tokenizer = None
            while True:
                number, text = self._compiling.receive()
                tokenizer = tokenizer or grammar_library.tokenizer_of(vocabulary)
                matcher = grammar_library.new_matcher(tokenizer, text)
                error = matcher.get_error() if matcher.is_error() else ""
                if not error:
                    self._matchers[number] = matcher
                self._compiling.send(error)

    def follow(self) -> None:
        """Follow the ids that come until the socket ends."""
        with suppress(EOFError, OSError):
            while True:
                number, kind, *values = self._following.receive()
                if kind == "drop":
                    self._matchers.pop(number, None)
                else:
                    self._answer(number, self._matchers[number], kind, *values)

    def _answer(self, number: int, matcher: LLMatcher, kind: str, *values: Any) -> None:
        if kind == "mask":
            self._mask(number, matcher)
        elif kind == "reset":
            matcher.reset()
            self._following.send(number, "reset", matcher.get_error())
        else:
            matcher.consume_tokens(*values)
            forced = [] if matcher.is_error() else matcher.compute_ff_tokens()
            is_stopped = matcher.is_stopped()
            self._following.send(number, "consumed", matcher.get_error(), forced, is_stopped)
            if not (forced or is_stopped or matcher.is_error()):
                self._mask(number, matcher)

    def _mask(self, number: int, matcher: LLMatcher) -> None:
        mask = matcher.compute_bitmask()
        self._following.send(number, "mask", mask, matcher.get_error() if matcher.is_error() else "")


def main(arguments: list[str]) -> None:
    """Serve the two sockets whose descriptors are the arguments."""
    # The engine's threads are pinned, and this process has inherited that
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    ends = [_Frames(socket.socket(fileno=int(argument))) for argument in arguments]
    server = _Server(*ends)
    threading.Thread(target=server.compile, daemon=True).start()
    server.follow()


if __name__ == "__main__":
    main(sys.argv[1:])
