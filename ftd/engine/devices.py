"""Where a model computes: the processor, or a CUDA card.

A ``Device`` says which graph runs there, who makes its KV pages and how much memory it has. torch is imported
here alone, and only when a card may be used.
"""

import glob
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ftd import log
from ftd.engine import memory
from ftd.engine.choosing import DeviceChooser
from ftd.engine.expert_cache import HALF_LIFE_STEPS, Clock
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.graphs import Graph
from ftd.engine.models import families
from ftd.errors import KernelUnavailable, OutOfMemory
from ftd.kernels import dispatch
from ftd.kernels.cpu import usable_cores

logger = logging.getLogger(__name__)

MakePages = Callable[[tuple[int, ...], str], Any]
# Few rows leave a card idle, so prefill takes larger chunks there than on a processor
CUDA_CHUNK_TOKENS = 2048
# Of the memory that is free on a card, so much stays free: kernels' own memory, other programs' growth
CUDA_RESERVE_BYTES = 512 << 20
# Steps of more tokens use nearly all experts of a layer and stage whole layers instead of placing each expert
MAX_PLACED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Device:
    """A place to compute: ``name`` is cpu or cuda, ``label`` names it for people."""

    name: str
    label: str
    make_graph: Callable[..., Graph]
    make_pages: MakePages
    free_bytes: Callable[[], int]
    make_chooser: Callable[[int, int], DeviceChooser | None]
    chunk_tokens: int = 0
    make_experts: Callable[[ExpertNeeds, int, int, str], Any] | None = None

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


def cpu() -> Device:
    """Return the processor."""
    return Device("cpu", "cpu", dispatch.get("graph"), np.zeros, memory.free_bytes, lambda vocab, rows: None)


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
    )


def cuda() -> Device:
    """Return the first CUDA card. Raises KernelUnavailable, with what is missing, if there is none."""
    reason = missing_for_cuda()
    if reason is not None:
        raise KernelUnavailable(f"no CUDA device can be used: {reason[0]}", reason[1])
    import torch

    return Device(
        "cuda",
        torch.cuda.get_device_name(0),
        _cuda_graph("cuda"),
        _pages("cuda"),
        lambda: max(0, torch.cuda.mem_get_info(0)[0] - CUDA_RESERVE_BYTES),
        _chooser("cuda"),
        CUDA_CHUNK_TOKENS,
        _experts("cuda"),
    )


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


def choose(wanted: str, architecture: str) -> Device:
    """Return the device named ``wanted`` for a model of a family.

    "auto" takes a card where one can be used and says why not. Raises KernelUnavailable if "cuda" cannot be.
    """
    if architecture in families.UNPROVEN_ON_CARD and wanted == "auto":
        reason = "kernels of this family are not proven on a card; FTD_DEVICE=cuda takes it all the same"
        logger.info(log.fields("device chosen", device="cpu", reason=reason))
        return cpu()
    if wanted == "cpu":
        return cpu()
    if wanted == "interpreter":
        return interpreter()
    if wanted == "cuda":
        return cuda()
    missing = missing_for_cuda()
    if missing is None:
        return cuda()
    logger.info(log.fields("device chosen", device="cpu", reason=missing[0]))
    return cpu()


def _cuda_graph(device: str) -> Callable[..., Graph]:
    return partial(dispatch.get("graph", "cuda"), device=device)


def _experts(device: str) -> Callable[[ExpertNeeds, int, int, str], Any]:
    from ftd.kernels.expert_pool import ExpertPool, PoolConfig

    def make(needs: ExpertNeeds, num_slots: int, num_chosen: int, policy: str) -> ExpertPool:
        config = PoolConfig(
            num_layers=needs.num_layers,
            num_experts=needs.num_experts,
            record_bytes=needs.record_bytes,
            num_slots=num_slots,
            quota=tuple(range(needs.num_experts + 1)),
            weights=Clock(HALF_LIFE_STEPS).weights,
            policy="decayed" if policy == "ftd" else "lru",
            whole_layers=policy in ("paper", "serial"),
            overlaps=policy != "serial",
        )
        return ExpertPool(config, MAX_PLACED_ROWS, num_chosen, device)

    return make


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
