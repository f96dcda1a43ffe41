"""Constrained output: which ids may come next so that what a request answers stays in its grammar.

    generate ─▶ compile, first mask ··▶ mask the logits ─▶ sample ─▶ consume ─▶ next mask ··▶
                └── helper thread ──┘        └──── thread of the step loop ───┘    └ helper ┘

The helper works without the GIL while the next step computes. Only one thread at a time touches a matcher:
the step loop waits for the mask before it samples, and asks for the next one after it has consumed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ftd.engine.messages import Grammar, Vocabulary
from ftd.errors import InvalidOption, InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Floats = NDArray[np.float32]
Allowed = NDArray[np.bool_]

# An automaton state takes 1 to 2 KiB; the library's own limits bound the work of one mask
MAX_LEXER_STATES = 50_000
MAX_GRAMMAR_SYMBOLS = 50_000
# Matchers of past requests, whose automata are warm: a request with a known grammar starts with one of them
KEPT_MATCHERS = 16


class Constraint:
    """What binds one sequence's output; ``apply`` and ``consume`` take turns."""

    def __init__(self, grammars: Grammars, grammar: Grammar) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._free_until = grammar.free_until
        self._is_free = bool(grammar.free_until)
        self._has_begun = False
        self._tail = b""
        self._matcher: LLMatcher | None = None
        self._mask: Future[bytes] = grammars.submit(self._start)

    def apply(self, logits: Floats) -> Floats:
        """Return ``logits`` [V] with minus infinity where an id is not allowed; good until the next call.

        Waits for the mask. Raises InvalidOption when the grammar is invalid or too complex to be followed.
        """
        if self._is_free:
            return logits
        detours = () if self._has_begun else tuple(self._grammar.detours)
        return self._grammars.masked(logits, self._mask.result(), detours)

    def consume(self, token: int) -> bool:
        """Move on behind ``token``, which was sampled under ``apply``, and begin to compute the next mask.

        Return whether the grammar's text has ended, so that nothing may follow. Raises InvalidOption.
        """
        if not self._has_begun and not self._is_free and token in self._grammar.detours:
            self._free_until = self._grammar.detours[token]
            self._is_free = True
        if self._is_free:
            self._watch(token)
            return False
        matcher = self._matcher
        assert matcher is not None and self._mask.done(), "apply comes before consume"
        self._has_begun = True
        if not matcher.consume_token(token):
            raise _failure(matcher)
        if matcher.is_stopped():
            return True
        self._mask = self._grammars.submit(self._next_mask)
        return False

    def close(self) -> None:
        """Give the matcher back; nothing may be called after that."""
        if self._matcher is not None and self._mask.done() and self._mask.exception() is None:
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

    def _start(self) -> bytes:
        self._matcher = self._grammars.matcher(self._grammar.text)
        return self._next_mask()

    def _next_mask(self) -> bytes:
        assert self._matcher is not None
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise _failure(self._matcher)
        return mask


class Grammars:
    """The vocabulary that constraints are written in, and the thread that computes masks. One per engine."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._masked = np.empty(vocab_size, np.float32)
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: LLTokenizer | None = None
        self._idle: OrderedDict[str, list[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None

    def learn(self, vocabulary: Vocabulary) -> None:
        """Take the bytes of every id; before the first ``begin``, once."""
        if self._vocabulary is not None:
            raise InvalidRequest("the engine knows its vocabulary already")
        self._vocabulary = vocabulary
        self._helper = ThreadPoolExecutor(1, "ftd-grammar")

    def begin(self, grammar: Grammar) -> Constraint:
        """Return the constraint of a new sequence; what is wrong with the grammar is told by ``apply``."""
        if self._vocabulary is None:
            raise InvalidRequest("a grammar needs the vocabulary first")
        return Constraint(self, grammar)

    def close(self) -> None:
        """End the thread."""
        if self._helper is not None:
            self._helper.shutdown(cancel_futures=True)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an id, empty for one without any."""
        assert self._vocabulary is not None
        tokens = self._vocabulary.tokens
        return tokens[token] if token < len(tokens) else b""

    def masked(self, logits: Floats, mask: bytes, also: Sequence[int] = ()) -> Floats:
        """Return a copy of ``logits`` [V] that forbids what has no bit in ``mask`` and is not in ``also``."""
        bits = np.frombuffer(mask, np.uint8)
        count = min(self._vocab_size, 8 * len(bits))
        allowed: Allowed = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
        for token in also:
            if token < count:
                allowed[token] = True
        self._masked.fill(-np.inf)
        np.copyto(self._masked[:count], logits[:count], where=allowed)
        return self._masked

    def submit(self, work: object) -> Future[bytes]:
        """Run ``work()`` in the helper thread."""
        assert self._helper is not None
        return self._helper.submit(work)  # type: ignore[arg-type]

    def matcher(self, text: str) -> LLMatcher:
        """Return a matcher at the start of the grammar ``text``; runs in the helper. Raises InvalidOption."""
        with self._lock:
            idle = self._idle.get(text)
            if idle:
                return idle.pop()
        # Most engines never constrain anything, and the library takes a tenth of a second to import
        import llguidance

        if self._tokenizer is None:
            assert self._vocabulary is not None
            self._tokenizer = _tokenizer(self._vocabulary)
        limits = llguidance.LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False
        )
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise _failure(matcher)
        return matcher

    def give_back(self, text: str, matcher: LLMatcher) -> None:
        """Keep a matcher whose request has ended for the next one with the same grammar."""
        if matcher.is_error() or not matcher.reset():
            return
        with self._lock:
            self._idle.setdefault(text, []).append(matcher)
            self._idle.move_to_end(text)
            while sum(map(len, self._idle.values())) > KEPT_MATCHERS:
                oldest = next(iter(self._idle))
                self._idle[oldest].pop()
                if not self._idle[oldest]:
                    del self._idle[oldest]


class _Words:
    """A vocabulary in the shape that ``llguidance.LLTokenizer`` takes.

    Called with a text, it returns ids: where a grammar leaves one text only, the library allows no other cut
    of it. The longest match at each place is what models write in JSON.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.library: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        return [] if self.library is None else self.library.greedy_tokenize(text)


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    import llguidance

    count = len(vocabulary.tokens)
    if not vocabulary.eos_ids:
        # The library asks for an id that ends a text: one behind the last, which no logit has
        tokens, special = [*vocabulary.tokens, b"<end>"], [*vocabulary.special_ids, count]
        vocabulary = Vocabulary(tokens=tokens, special_ids=special, eos_ids=[count])
    words = _Words(vocabulary)
    words.library = llguidance.LLTokenizer(
        words,  # type: ignore[arg-type]
        n_vocab=len(vocabulary.tokens),
        eos_token=vocabulary.eos_ids,
    )
    return words.library


def _failure(matcher: LLMatcher) -> InvalidOption:
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return InvalidOption(f"format cannot be enforced: {reason[:300]}", "use a simpler schema")
