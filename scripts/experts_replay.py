"""Texts that are replayed: every run decodes the same ids from the same slots, so all need the same experts.

A model samples its texts once (``record``). From then on a step does all that it always does, sampling
included; only the id that it hands on, to the next step and to the scheduler, is the recorded one. What the
slots held at the beginning is put back before each run.
"""

from dataclasses import dataclass
from typing import cast

import torch

from ftd.engine.batch import Batch
from ftd.engine.choosing import Choices, HostChooser, Wait
from ftd.engine.device_chooser import DeviceChooser
from ftd.engine.engine import Engine
from ftd.engine.model import Model
from ftd.engine.sequence import Sequence
from ftd.kernels.expert_slots import ExpertSlots

# Steps that may be under way at once, whose ids wait in locked memory
_IN_FLIGHT = 2


class Replay:
    """Stands between an engine and what chooses its ids: those of forced requests are given.

    Requests of one batch are all forced, or none is. A forced request ends before its ids do, and has no
    log probabilities: they would be those of ids that were sampled.
    """

    def __init__(self, engine: Engine) -> None:
        self._host, self._card = engine._host_chooser, engine._device_chooser
        self._texts: dict[int, list[int]] = {}
        self.ids: torch.Tensor | None = None
        engine._host_chooser = cast(HostChooser, self)
        if self._card is not None:
            engine._device_chooser = cast(DeviceChooser, self)
            rows, self._turn = engine.plan.max_sequences, 0
            self._device = engine.device.name if engine.device.name == "cuda" else "cpu"
            self._ids = torch.zeros(rows, dtype=torch.int32, device=self._device)
            pinned = self._device != "cpu"
            self._staged = torch.zeros((_IN_FLIGHT, rows), dtype=torch.int32, pin_memory=pinned)

    def force(self, request_id: int, ids: list[int]) -> None:
        """Let a request get ``ids`` one after the other, whatever is sampled."""
        self._texts[request_id] = ids

    def supports(self, batch: Batch) -> bool:
        """Return whether the card can sample for ``batch``."""
        assert self._card is not None
        return self._card.supports(batch)

    def launch(self, sequences: list[Sequence], logits: torch.Tensor, num_unknown: int) -> Wait:
        """Choose as ``DeviceChooser.launch`` does; then let ``ids`` be those that are forced."""
        assert self._card is not None
        wait = self._card.launch(sequences, logits, num_unknown)
        self.ids = self._card.ids
        forced = self._forced(sequences, num_unknown)
        if not forced:
            return wait
        rows = len(forced)
        staged = self._staged[self._turn, :rows]
        self._turn = (self._turn + 1) % _IN_FLIGHT
        staged.numpy()[:] = forced
        self.ids = self._ids[:rows]
        self.ids.copy_(staged, non_blocking=True)
        return lambda: _replaced(wait(), forced)

    def choose(self, batch: Batch, model: Model) -> Choices:
        """Choose on the processor as ``HostChooser.choose`` does, or what is forced."""
        return _replaced(self._host.choose(batch, model), self._forced(batch.sampled_sequences, 0))

    def _forced(self, sequences: list[Sequence], num_unknown: int) -> list[int]:
        """Return the next id of each sequence, none where they are free."""
        texts = [self._texts[each.request_id] for each in sequences if each.request_id in self._texts]
        if not texts:
            return []
        assert len(texts) == len(sequences), "a batch is forced as a whole"
        assert all(each.num_logprobs < 0 for each in sequences)
        places = [each.output_len + num_unknown for each in sequences]
        return [text[place] for text, place in zip(texts, places, strict=True)]


def _replaced(choices: Choices, forced: list[int]) -> Choices:
    """Return ``choices`` with the forced ids, if there are any; what failed has failed."""
    choices.ids = forced or choices.ids
    return choices


@dataclass(frozen=True, slots=True)
class Slots:
    """What a pool's slots held at one moment, and how hot its experts were."""

    pool: ExpertSlots
    state: dict[str, torch.Tensor]

    @classmethod
    def of(cls, pool: ExpertSlots) -> "Slots":
        """Return what the slots of ``pool`` hold; nothing may be under way."""
        return cls(pool, pool.state.saved())

    def put_back(self) -> None:
        """Fill the slots as they were; nothing may be under way. The quota is as it was, too."""
        self.pool.state.restore(self.state)
        owners = self.pool.state.owner_of
        places = (owners >= 0).nonzero().flatten()
        rows = torch.stack([owners[places], places.to(torch.int32)], dim=1)
        number = torch.tensor([len(rows)], dtype=torch.int32, device=rows.device)
        self.pool.fetch(rows, number)
