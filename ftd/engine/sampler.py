"""Chooses the next id of a sequence from its logits, the same id for the same seed whatever else is in the
batch.

The random number of output token n of a request is a pure function of its seed and n, so neither batching nor
preemption nor a warm prefix changes a text.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ftd.engine.graphs import Floats
from ftd.engine.messages import SamplingParams, TokenLogprob
from ftd.engine.sequence import Sequence
from ftd.errors import EngineError, InvalidOption
from ftd.kernels import dispatch

MAX_LOGPROBS = 1024
MAX_HISTORY_TOKENS = 1 << 24
_MASK = (1 << 64) - 1
# Picking out so many logits takes about as long as masking all of a large vocabulary
FEW_IDS = 2048

# Not a number is in no range. Numbers beyond these make every logit equal or infinite.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e4),
    "top_p": (-1e4, 1e4),
    "min_p": (-1e4, 1e4),
    "typical_p": (-1e4, 1e4),
    "repeat_penalty": (1e-4, 1e4),
    "presence_penalty": (-1e4, 1e4),
    "frequency_penalty": (-1e4, 1e4),
}


@dataclass(frozen=True, slots=True)
class State:
    """What sampling keeps of a request: parameters within the kernel's bounds, a seed that is never None."""

    params: SamplingParams
    seed: int


def uniform(seed: int, count: int) -> float:
    """Return the number in [0, 1) that output token ``count`` under ``seed`` draws (SplitMix64)."""
    state = (_mix(seed & _MASK) + (count + 1) * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(state) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _places(ids: NDArray[np.intp], history: NDArray[np.int32], params: SamplingParams) -> NDArray[np.int32]:
    """Return where in ``ids``, which rise, those of the history stand that penalties look at."""
    start = max(0, len(history) - params.repeat_last_n) if params.repeat_last_n >= 0 else 0
    last = history[start:]
    places = np.minimum(np.searchsorted(ids, last), len(ids) - 1).astype(np.int32)
    found: NDArray[np.int32] = places[ids[places] == last]
    return found


class Sampler:
    """Samples for all sequences of an engine; keeps nothing between calls but each request's ``State``."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._choose: Callable[..., int] = dispatch.get("sample")
        self._logprobs: Callable[..., tuple[float, list[tuple[int, float]]]] = dispatch.get("logprobs")

    def begin(self, sampling: SamplingParams, num_logprobs: int) -> State:
        """Return the state of a new request. Raises InvalidOption if its parameters are impossible."""
        if not -1 <= num_logprobs <= MAX_LOGPROBS:
            raise InvalidOption(f"number of logprobs must be between -1 and {MAX_LOGPROBS}: {num_logprobs}")
        for name, (low, high) in _RANGES.items():
            value = getattr(sampling, name)
            if not low <= value <= high:
                raise InvalidOption(f"{name} must be between {low:g} and {high:g}: {value}")
        # Larger numbers mean the same and might not fit the kernel's integers.
        params = msgspec.structs.replace(
            sampling,
            top_k=max(0, min(sampling.top_k, self._vocab_size)),
            repeat_last_n=max(-1, min(sampling.repeat_last_n, MAX_HISTORY_TOKENS)),
        )
        return State(params, int.from_bytes(os.urandom(8)) if sampling.seed is None else sampling.seed)

    def sample(self, logits: Floats, sequence: Sequence, allowed: NDArray[np.bool_] | None = None) -> int:
        """Return the next id of ``sequence`` from its ``logits`` [V]; EngineError if they are not finite.

        allowed: [V], where some ids are forbidden; the result is what minus infinity in their logits gives.
        """
        state = sequence.sampler_state
        assert isinstance(state, State)
        history = np.frombuffer(sequence.ids, np.int32)
        number = uniform(state.seed, sequence.output_len)
        if allowed is None:
            return int(self._choose(logits, state.params, history, number))
        if np.count_nonzero(allowed) > FEW_IDS:
            return int(
                self._choose(np.where(allowed, logits, np.float32(-np.inf)), state.params, history, number)
            )
        # Where a grammar leaves few ids, as it mostly does, the kernel need not look at all the others
        ids = np.flatnonzero(allowed)
        if len(ids) == 1:
            return int(ids[0])
        if not len(ids):
            raise EngineError("no token is allowed next")
        places = _places(ids, history, state.params)
        return int(ids[self._choose(logits[ids], state.params, places, number)])

    def logprob(self, logits: Floats, token: int, num_top: int) -> TokenLogprob:
        """Return the log-probabilities of ``token`` and of the ``num_top`` best, before any filter."""
        value, top = self._logprobs(logits, token, num_top)
        return TokenLogprob(token, value, top)
