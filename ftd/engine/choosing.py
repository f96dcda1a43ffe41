"""Chooses the next ids of a whole batch: on the host, row by row, or on a card, one step behind.

    HostChooser      waits for the logits; serves every request, grammars too
    DeviceChooser    (``device_chooser``) samples where the logits are, lets the host go on; serves what
                     ``sample_rows`` supports

Both draw the same number for the same request and token, so a text does not depend on which one chose it
(but for rounding where two tokens are all but equal).
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ftd.engine.batch import Batch
from ftd.engine.messages import TokenLogprob
from ftd.engine.model import Model
from ftd.engine.sampler import Sampler, State
from ftd.engine.sequence import Sequence
from ftd.errors import EngineError, FtdError, InvalidOption
from ftd.kernels import sample_rows


class Choices(msgspec.Struct):
    """The ids of a batch's sampled sequences, in their order; by request id, logprobs and what went wrong."""

    ids: list[int] = []
    logprobs: dict[int, TokenLogprob] = {}
    failures: dict[int, FtdError] = {}


Wait = Callable[[], Choices]


class HostChooser:
    """Samples on the processor from logits in its memory."""

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._sampler = sampler
        self._vocab_size = vocab_size

    def choose(self, batch: Batch, model: Model) -> Choices:
        """Choose the next id of each sequence that gets one."""
        choices = Choices()
        sequences = batch.sampled_sequences
        if not sequences:
            return choices
        logits = model.logits
        for row, sequence in enumerate(sequences):
            bound = sequence.constraint
            try:
                allowed = None if bound is None else bound.allowed(self._vocab_size)
                token = self._sampler.sample(logits[row], sequence, allowed)
                if bound is not None and token not in sequence.stop_ids:
                    bound.consume(token)
                    if sequence.num_logprobs < 0:  # else every id needs logits
                        sequence.forced_ids = bound.consume_forced()
                    sequence.is_complete = bound.is_complete
            except (EngineError, InvalidOption) as exc:
                # Logits that are not finite, a grammar that is none: the others of the batch go on
                choices.failures[sequence.request_id] = exc
                choices.ids.append(0)
                continue
            choices.ids.append(token)
            if sequence.num_logprobs >= 0:
                choices.logprobs[sequence.request_id] = self._sampler.logprob(
                    logits[row], token, sequence.num_logprobs
                )
        return choices


def params_of(sequence: Sequence) -> Any:
    """Return how the next ids of a sequence are chosen."""
    assert isinstance(sequence.sampler_state, State)
    return sequence.sampler_state.params


def depends_on_history(sequence: Sequence) -> bool:
    """Return whether the next id depends on which ids came before other than through the logits."""
    return sequence.constraint is not None or sample_rows.changes_logits(params_of(sequence))
