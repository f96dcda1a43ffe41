"""Chooses the next id of a sequence from its logits, the same id for the same seed whatever else is in the
batch.

The random number of output token n of a request is a pure function of its seed and n, so neither batching nor
preemption nor a warm prefix changes a text.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftd.engine.graphs import Floats
from ftd.engine.messages import SamplingParams
from ftd.engine.sequence import Sequence
from ftd.errors import InvalidOption
from ftd.kernels import dispatch

MAX_LOGPROBS = 1024
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class State:
    """What sampling keeps of a request: parameters as the kernel wants them, a seed that is never None."""

    params: Any
    seed: int
    history_tokens: int


def uniform(seed: int, count: int) -> float:
    """Return the number in [0, 1) that output token ``count`` under ``seed`` draws (SplitMix64)."""
    state = (_mix(seed & _MASK) + (count + 1) * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(state) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Sampler:
    """Samples for all sequences of an engine. Stateless between calls but for each request's ``State``."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._choose = dispatch.get("sample")

    def begin(self, sampling: SamplingParams, num_logprobs: int) -> State:
        """Return the state of a new request. Raises InvalidOption if its parameters are impossible."""
        if not -1 <= num_logprobs <= MAX_LOGPROBS:
            raise InvalidOption(f"number of logprobs must be between -1 and {MAX_LOGPROBS}: {num_logprobs}")
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        return State(sampling, seed, 0)

    def sample(self, logits: Floats, sequence: Sequence) -> int:
        """Return the next id of ``sequence`` from its ``logits`` [V]."""
        state = sequence.sampler_state
        assert isinstance(state, State)
        history = np.frombuffer(sequence.ids, np.int32)
        return int(self._choose(logits, state.params, history, uniform(state.seed, sequence.output_len)))
