"""Where a model computes: the processor, or a CUDA card.

A ``Device`` says which graph runs there, who makes its KV pages and how much memory it has. torch is imported
here alone, and only when a card may be used.
"""

import glob
import importlib.util
import logging
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ftd import log
from ftd.engine import card_memory, memory
from ftd.engine.card_memory import Workspace
from ftd.engine.choosing import DeviceChooser
from ftd.engine.expert_cache import EPOCH_HALF_LIVES, HALF_LIFE_STEPS, Clock
from ftd.engine.expert_plan import ExpertNeeds, Policy
from ftd.engine.graphs import Graph
from ftd.engine.model_config import ModelConfig
from ftd.engine.weights import Weights
from ftd.errors import KernelUnavailable, OutOfMemory
from ftd.kernels import dispatch
from ftd.kernels.cpu import usable_cores

logger = logging.getLogger(__name__)

MakePages = Callable[[tuple[int, ...], str], Any]
# Few rows leave a card idle, so prefill takes larger chunks there than on a processor
CUDA_CHUNK_TOKENS = 2048
# Of the memory that is free on a card, so much stays free for other programs' growth
CUDA_RESERVE_BYTES = 256 << 20
# Steps of more tokens use nearly all experts of a layer and stage whole layers instead of placing each one.
# With 37 % of 128 experts in slots 100 tokens of bf16 take 77 ms placed and 115 staged, 256 take 121 and 113;
# of q4_0 28 and 35, 44 and 35 (8 layers of 30b-a3b, H200).
MAX_PLACED_ROWS = 128
# Where arrays begin in memory that is shared out: whole lines of caches
_PAGE_ALIGNMENT = 256


class Device(msgspec.Struct, frozen=True):
    """A place to compute: ``name`` is cpu or cuda, ``label`` names it for people.

    reason: why it was chosen, if nobody asked for it. context_bytes: what the driver takes of a card for this
    process; used_bytes: all that it takes there.
    """

    name: str
    label: str
    make_graph: Callable[..., Graph]
    make_pages: MakePages
    free_bytes: Callable[[], int]
    make_chooser: Callable[[int, int], DeviceChooser | None]
    chunk_tokens: int = 0
    make_experts: Callable[[ExpertNeeds, int, int, Policy, Any], Any] | None = None
    make_weights: Callable[[Any, int, int], Any] | None = None
    make_ring: Callable[[], Any] | None = None
    used_bytes: Callable[[], int] | None = None
    context_bytes: int = 0
    reason: str = ""

    @property
    def copies_weights(self) -> bool:
        """Whether weights are copied there."""
        return self.make_weights is not None

    def release(self) -> None:
        """Give memory that nobody uses back to the device, so that ``free_bytes`` sees it."""
        if self.name == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def arena(self, num_bytes: int) -> MakePages:
        """Return what makes pages of memory that is allocated at once, where rounding each would cost."""
        return _arena(self.make_pages, num_bytes) if self.copies_weights else self.make_pages

    def workspace(
        self, config: ModelConfig, outline: Callable[[], Weights], precision: str, page_size: int
    ) -> Workspace | None:
        """Return what says how large a model's workspace is there, None where a formula does."""
        if not self.copies_weights:
            return None
        return card_memory.workspace(
            config, outline(), precision, page_size, _cuda_graph("meta"), _pages("meta")
        )

    def num_threads(self) -> int:
        """Return how many threads compute beside the engine's own where nobody says it, 0 for all cores."""
        return max(1, len(usable_cores()) - 1) if self.name == "cuda" else 0

    @staticmethod
    def measure_rates(pool: Any, num_threads: int) -> tuple[float, float]:
        """Return bytes a second of fetching a pool's experts, and of reading host memory with all threads."""
        from ftd.kernels import bandwidth, copy_rate

        return copy_rate.measure(pool), bandwidth.measure(num_threads)

    @staticmethod
    def measure_experts(pool: Any, num_chosen: int) -> Any:
        """Measure how fast a pool fetches experts and how fast the processor runs them."""
        from ftd.kernels import expert_rates

        return expert_rates.measure(pool, num_chosen)


def cpu(reason: str = "") -> Device:
    """Return the processor. reason: why it is no card."""
    make_graph, no_chooser = dispatch.get("graph"), _no_chooser
    return Device("cpu", "cpu", make_graph, np.zeros, memory.free_bytes, no_chooser, reason=reason)


def interpreter() -> Device:
    """Return Triton's interpreter: the kernels of a card, run slowly on the processor, for tests."""
    return Device(
        "interpreter",
        "interpreter",
        _cuda_graph("cpu"),
        _pages("cpu"),
        memory.free_bytes,
        _chooser("cpu"),
        make_experts=_experts("cpu"),
        make_weights=_weights("cpu"),
        make_ring=_ring("cpu"),
    )


def cuda() -> Device:
    """Return the first CUDA card. Raises KernelUnavailable, with what is missing, if there is none."""
    reason = missing_for_cuda()
    if reason is not None:
        raise KernelUnavailable(f"no CUDA device can be used: {reason[0]}", reason[1])
    import torch

    context_bytes, free_bytes = _first_look()
    return Device(
        "cuda",
        torch.cuda.get_device_name(0),
        _cuda_graph("cuda"),
        _pages("cuda"),
        lambda: max(0, torch.cuda.mem_get_info(0)[0] + context_bytes - CUDA_RESERVE_BYTES),
        _chooser("cuda"),
        CUDA_CHUNK_TOKENS,
        _experts("cuda"),
        _weights("cuda"),
        _ring("cuda"),
        lambda: context_bytes + max(0, free_bytes - torch.cuda.mem_get_info(0)[0]),
        context_bytes,
    )


@lru_cache
def _first_look() -> tuple[int, int]:
    """Return what this process took of the card before anything was allocated, and what was free then."""
    import torch

    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    # More is not ours, unless a card is new to us
    return min(total_bytes - free_bytes, card_memory.CONTEXT_BYTES), free_bytes


def missing_for_cuda() -> tuple[str, str] | None:
    """Return why no card can be used and what to do, None if one can."""
    if not glob.glob("/dev/nvidia[0-9]*") and not glob.glob("/dev/dxg"):
        return (
            "this machine has no NVIDIA card, or its driver is not loaded",
            "install the driver, or use cpu",
        )
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        return "torch or triton is not installed", "pip install 'ftd[gpu]'"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no card", "install a CUDA build of torch that fits the driver"
    return None


def choose(wanted: str) -> Device:
    """Return the device named ``wanted``.

    "auto" takes a card where one can be used and says why not. Raises KernelUnavailable if "cuda" cannot be.
    """
    if wanted == "auto":
        return _chosen(_automatic())
    return {"cpu": cpu, "interpreter": interpreter, "cuda": cuda}[wanted]()


def _automatic() -> Device:
    """Return a card where one can be used, else the processor, and why."""
    missing = missing_for_cuda()
    if missing is not None:
        return cpu(missing[0])
    card = cuda()
    return replace(card, reason="it can be used")


def _chosen(device: Device) -> Device:
    """Say in the log what was chosen and why."""
    logger.info(log.fields("device chosen", device=device.label, reason=device.reason))
    return device


def _no_chooser(vocab_size: int, max_sequences: int) -> DeviceChooser | None:
    """Return nothing: ids are chosen on the host."""
    return None


def _cuda_graph(device: str) -> Callable[..., Graph]:
    return partial(dispatch.get("graph", "cuda"), device=device)


def _experts(device: str) -> Callable[[ExpertNeeds, int, int, Policy, Any], Any]:
    from ftd.kernels.expert_places import PoolConfig
    from ftd.kernels.expert_pool import ExpertPool

    def make(needs: ExpertNeeds, num_slots: int, num_chosen: int, policy: Policy, kept: Any) -> ExpertPool:
        config = PoolConfig(
            num_layers=needs.num_layers,
            num_experts=needs.num_experts,
            record_bytes=needs.record_bytes,
            num_slots=num_slots,
            quota=tuple(range(needs.num_experts + 1)),
            weights=Clock(HALF_LIFE_STEPS).weights,
            epoch_half_lives=EPOCH_HALF_LIVES,
            policy=policy.residency,
            whole_layers=policy.is_paper,
            overlaps=policy.overlaps,
            staged_layers=needs.staged_layers,
        )
        return ExpertPool(config, MAX_PLACED_ROWS, num_chosen, device, kept)

    return make


def _arena(make_pages: MakePages, num_bytes: int) -> MakePages:
    import torch

    memory, used = make_pages((num_bytes,), "uint8"), 0

    def make(shape: tuple[int, ...], dtype: str) -> Any:
        nonlocal used
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if used + size > num_bytes:
            return make_pages(shape, dtype)
        part = memory[used : used + size]
        used += -(-size // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT
        return part.view(getattr(torch, dtype)).view(shape)

    return make


def _weights(device: str) -> Callable[[Any, int, int], Any]:
    from ftd.kernels.device_weights import DeviceWeights

    return partial(DeviceWeights, device)


def _ring(device: str) -> Callable[[], Any]:
    from ftd.kernels.upload_ring import UploadRing

    return partial(UploadRing, device)


def _chooser(device: str) -> Callable[[int, int], DeviceChooser | None]:
    return partial(DeviceChooser, device=device)


def _pages(device: str) -> MakePages:
    import torch

    def make(shape: tuple[int, ...], dtype: str) -> Any:
        try:
            return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"the device refused KV pages of shape {list(shape)}", "lower num_ctx or FTD_NUM_PARALLEL"
            ) from exc

    return make
