"""Chooses the next ids of a batch where the logits are: on a card, one step behind."""

from typing import Any

import numpy as np
import torch

from ftd.engine.batch import Batch
from ftd.engine.choosing import Choices, Wait, params_of
from ftd.engine.messages import TokenLogprob
from ftd.engine.sampler import State, uniform
from ftd.engine.sequence import Sequence
from ftd.kernels import sample_rows, sample_triton
from ftd.kernels.sample_ref import reject

# Batches whose results may be awaited at the same time: one that runs, and one that was launched ahead.
_IN_FLIGHT = 2


class DeviceChooser:
    """Samples on a card. ``ids`` holds what the last launch chose, for the next step to read there."""

    def __init__(self, vocab_size: int, max_rows: int, device: str) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._staged = [_Staging(max_rows, device) for _ in range(_IN_FLIGHT)]
        self._turn = 0
        self._parameters = torch.empty(self._staged[0].parameters.shape, dtype=torch.float64, device=device)
        self._history = torch.empty(self._staged[0].history.shape, dtype=torch.int32, device=device)
        self._memory: dict[int, tuple[Any, torch.Tensor]] = {}
        self._max_rows = max_rows
        self.ids: torch.Tensor | None = None

    def supports(self, batch: Batch) -> bool:
        """Return whether all sampled sequences of ``batch`` can be served here."""
        sequences = batch.sampled_sequences
        return bool(sequences) and all(
            each.constraint is None and sample_rows.supports(params_of(each), each.num_logprobs)
            for each in sequences
        )

    def launch(self, sequences: list[Sequence], logits: torch.Tensor, num_unknown: int) -> Wait:
        """Enqueue the choice of the next id of each of ``sequences``; return what waits for it.

        logits [num, V]. num_unknown: ids that precede the chosen ones and are not known on the host yet.
        """
        staging = self._staged[self._turn]
        self._turn = (self._turn + 1) % _IN_FLIGHT
        rows = len(sequences)
        num_candidates = 1
        for row, sequence in enumerate(sequences):
            params, state = params_of(sequence), sequence.sampler_state
            assert isinstance(state, State)
            number = uniform(state.seed, sequence.output_len + num_unknown)
            history = np.frombuffer(sequence.ids, np.int32)
            place = staging.parameters_array[row], staging.history_array[row]
            sample_rows.fill_row(*place, params, history, number, self._vocab_size)
            needed = sample_rows.candidates_needed(params, sequence.num_logprobs)
            num_candidates = max(num_candidates, needed)
        self._parameters[:rows].copy_(staging.parameters[:rows], non_blocking=True)
        self._history[:rows].copy_(staging.history[:rows], non_blocking=True)
        out, workspace = self._room(rows, num_candidates)
        sample_triton.sample_into(
            logits,
            self._parameters[:rows],
            self._history[:rows],
            num_candidates,
            out=out,
            workspace=workspace,
        )
        self.ids = out.ids
        staging.ids[:rows].copy_(out.ids, non_blocking=True)
        fetch = _Logprobs(out) if any(each.num_logprobs >= 0 for each in sequences) else None
        event = None if self._device == "cpu" else torch.cuda.Event()
        if event is not None:
            event.record()

        def wait() -> Choices:
            if event is not None:
                event.synchronize()
            return _choices(sequences, staging.ids_array[:rows].tolist(), fetch)

        return wait

    def _room(self, rows: int, num_candidates: int) -> tuple[Any, torch.Tensor]:
        """Return the memory of a launch: results of ``rows`` rows, and workspace."""
        if num_candidates not in self._memory:
            length = sample_triton.workspace_len(self._max_rows, self._vocab_size, num_candidates)
            self._memory[num_candidates] = (
                sample_triton.Sampled.empty(self._max_rows, num_candidates, self._device),
                torch.empty(length, dtype=torch.int32, device=self._device),
            )
        out, workspace = self._memory[num_candidates]
        parts = (out.ids, out.logits, out.logsumexp, out.candidates, out.candidate_ids)
        return sample_triton.Sampled(*(part[:rows] for part in parts)), workspace


class _Staging:
    """Pinned memory of one launch: what goes down, and the ids that come back."""

    def __init__(self, max_rows: int, device: str) -> None:
        pinned = device != "cpu"
        shape = (max_rows, sample_rows.NUM_PARAMETERS)
        self.parameters = torch.zeros(shape, dtype=torch.float64, pin_memory=pinned)
        self.history = torch.zeros((max_rows, sample_rows.MAX_HISTORY), dtype=torch.int32, pin_memory=pinned)
        self.ids = torch.zeros(max_rows, dtype=torch.int32, pin_memory=pinned)
        self.parameters_array, self.history_array = self.parameters.numpy(), self.history.numpy()
        self.ids_array = self.ids.numpy()


class _Logprobs:
    """Copies of what logprobs are made of, on their way to the host."""

    def __init__(self, sampled: Any) -> None:
        parts = (sampled.logits, sampled.logsumexp, sampled.candidates, sampled.candidate_ids)
        # The results are overwritten by the next launch, which may come before anybody reads these
        self._parts = [part.clone() for part in parts]

    def row(self, row: int, token: int, num_top: int) -> TokenLogprob:
        """Return the logprob of the token of ``row`` and those of the ``num_top`` likeliest."""
        logit, total, candidates, ids = (part[row].cpu().numpy() for part in self._parts)
        top = [(int(ids[i]), float(candidates[i] - total)) for i in range(num_top) if ids[i] >= 0]
        return TokenLogprob(token, float(logit - total), top)


def _choices(sequences: list[Sequence], ids: list[int], fetch: _Logprobs | None) -> Choices:
    choices = Choices()
    for row, (sequence, token) in enumerate(zip(sequences, ids, strict=True)):
        if token < 0:
            choices.failures[sequence.request_id] = reject(float("nan"))
            choices.ids.append(0)
            continue
        choices.ids.append(token)
        if fetch is not None and sequence.num_logprobs >= 0:
            choices.logprobs[sequence.request_id] = fetch.row(row, token, sequence.num_logprobs)
    return choices
