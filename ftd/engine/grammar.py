"""Constrained output: which ids may come next so that what a request answers stays in its grammar.

    generate ─▶ compile ··▶ prepare ─▶ allowed ─▶ sample among them ─▶ consume ─▶ emit ─▶ prepare ─▶ …
                └ helper ┘   └────────────────── thread of the step loop ──────────────────────┘

Compiling takes milliseconds to a second and runs beside the steps of others. Matchers live in a process of
their own (``ftd.engine.grammar_process``): the mask for the next id is computed there while the model runs.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ftd.engine.grammar_process import GrammarProcess, RemoteMatcher
from ftd.engine.messages import Grammar, Vocabulary
from ftd.errors import InvalidOption, InvalidRequest

Bits = NDArray[np.bool_]

# Matchers of past requests, whose automata are warm: a request with a known grammar starts with one of them
KEPT_MATCHERS = 16


class Constraint:
    """What binds one sequence's output; ``allowed`` and ``consume`` take turns, ``prepare`` comes between."""

    def __init__(self, grammars: Grammars, grammar: Grammar) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._free_until = grammar.free_until
        self._is_free = bool(grammar.free_until)
        self._has_begun = False
        self._tail = b""
        self._mask = b""
        self._matcher: RemoteMatcher | None = None
        self._starting: Future[RemoteMatcher] | None = grammars.submit(lambda: grammars.matcher(grammar.text))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the compiler; return whether it has done its work, well or not."""
        return self._starting is None or not concurrent.futures.wait((self._starting,), timeout_s).not_done

    def prepare(self) -> None:
        """Compute the mask that the next ``allowed`` needs; raises what that does."""
        if not self._is_free:
            self._compute_mask()

    def allowed(self, vocab_size: int) -> Bits | None:
        """Return [V]: which ids may come next; None when all may.

        Waits for the compiler. Raises InvalidOption when the grammar is invalid, or too complex to follow.
        """
        if self._is_free:
            return None
        self._compute_mask()
        bits = unpacked(self._mask, vocab_size)
        if not self._has_begun:
            for token in self._grammar.detours:
                if token < vocab_size:
                    bits[token] = True
        return bits

    def consume(self, token: int) -> None:
        """Move on behind ``token``, which ``allowed`` had allowed. Raises InvalidOption."""
        if not self._has_begun and not self._is_free and token in self._grammar.detours:
            self._free_until = self._grammar.detours[token]
            self._is_free = True
        if self._is_free:
            self._watch(token)
            return
        matcher = self._matcher
        assert matcher is not None, "allowed comes before consume"
        self._has_begun, self._mask = True, b""
        if not matcher.consume_token(token):
            raise _failure(matcher)

    def consume_forced(self) -> list[int]:
        """Move on behind the ids that can only follow now, and return them; after ``consume``."""
        if self._is_free or self._matcher is None:
            return []
        forced = self._matcher.compute_ff_tokens()
        if forced and not self._matcher.consume_tokens(forced):
            raise _failure(self._matcher)
        return forced

    @property
    def is_complete(self) -> bool:
        """Whether the grammar's text has ended, so that nothing may follow."""
        return not self._is_free and self._matcher is not None and self._matcher.is_stopped()

    def close(self) -> None:
        """Give the matcher back; nothing may be called after that."""
        starting, self._starting = self._starting, None
        if starting is not None and not starting.cancel() and starting.done() and not starting.exception():
            self._matcher = starting.result()
        if self._matcher is not None:
            self._grammars.give_back(self._grammar.text, self._matcher)
        self._matcher = None

    def _watch(self, token: int) -> None:
        """Look for the bytes that end free output; without any it is free to its end."""
        if not self._free_until:
            return
        self._tail += self._grammars.token_bytes(token)
        if self._free_until in self._tail:
            self._is_free, self._tail = False, b""
        else:
            self._tail = self._tail[-len(self._free_until) :]

    def _compute_mask(self) -> None:
        if self._starting is not None:
            self._matcher, self._starting = self._starting.result(), None
        if not self._mask:
            assert self._matcher is not None
            mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise _failure(self._matcher)
            self._mask = mask


class Grammars:
    """The vocabulary that constraints are written in, the thread that compiles and the process that follows.

    One per engine. The process starts with the first grammar.
    """

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._process: GrammarProcess | None = None
        self._idle: OrderedDict[str, list[RemoteMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None

    def learn(self, vocabulary: Vocabulary) -> None:
        """Take the bytes of every id; before the first ``begin``, once."""
        if self._vocabulary is not None:
            raise InvalidRequest("the engine knows its vocabulary already")
        self._vocabulary = vocabulary
        self._helper = ThreadPoolExecutor(1, "ftd-grammar")

    def begin(self, grammar: Grammar) -> Constraint:
        """Return the constraint of a new sequence; what is wrong with the grammar is told by ``allowed``."""
        if self._vocabulary is None:
            raise InvalidRequest("a grammar needs the vocabulary first")
        return Constraint(self, grammar)

    def close(self) -> None:
        """End the thread and the process."""
        if self._helper is not None:
            self._helper.shutdown(cancel_futures=True)
        if self._process is not None:
            self._process.close()

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an id, empty for one without any."""
        assert self._vocabulary is not None
        tokens = self._vocabulary.tokens
        return tokens[token] if token < len(tokens) else b""

    def submit(self, work: Callable[[], RemoteMatcher]) -> Future[RemoteMatcher]:
        """Run ``work()`` in the helper thread."""
        assert self._helper is not None
        return self._helper.submit(work)

    def matcher(self, text: str) -> RemoteMatcher:
        """Return a matcher at the start of the grammar ``text``; runs in the helper. Raises InvalidOption."""
        with self._lock:
            if idle := self._idle.pop(text, None):
                matcher = idle.pop()
                if idle:
                    self._idle[text] = idle
                return matcher
        matcher = self._compile(text)
        if matcher.is_error():
            raise _failure(matcher)
        return matcher

    def _compile(self, text: str) -> RemoteMatcher:
        assert self._vocabulary is not None
        if self._process is not None and self._process.is_dead:
            self._process.close()
            self._process = None
        self._process = self._process or GrammarProcess(self._vocabulary)
        return self._process.compile(text)

    def give_back(self, text: str, matcher: RemoteMatcher) -> None:
        """Keep a matcher whose request has ended for the next one with the same grammar."""
        if matcher.is_error() or not matcher.reset():
            matcher.drop()
            return
        with self._lock:
            self._idle.setdefault(text, []).append(matcher)
            self._idle.move_to_end(text)
            while sum(map(len, self._idle.values())) > KEPT_MATCHERS:
                oldest = next(iter(self._idle))
                self._idle[oldest].pop().drop()
                if not self._idle[oldest]:
                    del self._idle[oldest]


def unpacked(mask: bytes, vocab_size: int) -> Bits:
    """Return [V] of a mask, whose bit i % 8 of byte i // 8 is that of id i; ids behind its end have none."""
    bits = np.frombuffer(mask, np.uint8)
    if 8 * len(bits) < vocab_size:
        bits = np.concatenate((bits, np.zeros(-(-vocab_size // 8) - len(bits), np.uint8)))
    return np.unpackbits(bits, count=vocab_size, bitorder="little").view(np.bool_)


def _failure(matcher: RemoteMatcher) -> InvalidOption:
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return InvalidOption(f"format cannot be enforced: {reason[:300]}", "use a simpler schema")
