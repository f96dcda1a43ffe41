"""What the engine knows of the place where a model computes; ``devices`` chooses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ftd.engine.card_memory import Workspace
from ftd.engine.expert_plan import ExpertNeeds, Policy
from ftd.engine.graphs import Graph
from ftd.engine.model_config import ModelConfig
from ftd.engine.weights import Weights
from ftd.kernels.cpu import usable_cores

if TYPE_CHECKING:
    from ftd.engine.card_experts import CardExperts
    from ftd.engine.device_chooser import DeviceChooser

MakePages = Callable[[tuple[int, ...], str], Any]
# Few rows leave a card idle, so prefill takes larger chunks there than on a processor
CUDA_CHUNK_TOKENS = 2048


def no_chooser(vocab_size: int, max_sequences: int) -> DeviceChooser | None:
    """Return nothing: ids are chosen on the host."""
    return None


def keep_memory() -> None:
    """Do nothing: a processor's memory is the system's."""


class Rates(msgspec.Struct, frozen=True):
    """Measurements of a card.

    device_copy, host_copy: bytes a second read and written on it, and copied to it by the copy engine;
    fetch: bytes a second of a pool's own kernel; experts: how fast a pool fetches experts and the processor
    runs them, for a number that each token chooses.
    """

    device_copy: Callable[[], float]
    host_copy: Callable[[], float]
    fetch: Callable[[Any], float]
    experts: Callable[[Any, int], Any]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A place to compute: ``name`` is cpu, cuda or interpreter, ``label`` names it for people.

    reason: why it was chosen, if nobody asked for it. context_bytes: what the driver takes of a card for this
    process; used_bytes: all that it takes there; release: gives memory that nobody uses back to the card, so
    that ``free_bytes`` sees it. make_experts: makes the pool of experts that do not fit; hold_experts: what
    takes care of that pool. Only cards have what is None by default.
    """

    name: str
    label: str
    make_graph: Callable[..., Graph]
    make_pages: MakePages
    free_bytes: Callable[[], int]
    make_chooser: Callable[[int, int], DeviceChooser | None] = no_chooser
    chunk_tokens: int = 0
    make_experts: Callable[[ExpertNeeds, int, int, Policy, Any], Any] | None = None
    hold_experts: Callable[..., CardExperts] | None = None
    make_weights: Callable[[Any, int, int], Any] | None = None
    make_ring: Callable[[], Any] | None = None
    make_arena: Callable[[int], MakePages] | None = None
    make_workspace: Callable[[ModelConfig, Weights, str, int], Workspace] | None = None
    rates: Rates | None = None
    release: Callable[[], None] = keep_memory
    used_bytes: Callable[[], int] | None = None
    context_bytes: int = 0
    reason: str = ""

    def arena(self, num_bytes: int) -> MakePages:
        """Return what makes pages of memory that is allocated at once, where rounding each would cost."""
        return self.make_pages if self.make_arena is None else self.make_arena(num_bytes)

    def workspace(
        self, config: ModelConfig, outline: Callable[[], Weights], precision: str, page_size: int
    ) -> Workspace | None:
        """Return what says how large a model's workspace is there, None where a formula does."""
        if self.make_workspace is None:
            return None
        return self.make_workspace(config, outline(), precision, page_size)

    def num_threads(self) -> int:
        """Return how many threads compute beside the engine's own where nobody says it, 0 for all cores."""
        return max(1, len(usable_cores()) - 1) if self.name == "cuda" else 0
