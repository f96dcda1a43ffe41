"""A CUDA card as a place to compute, and Triton's interpreter, which stands for one in tests."""

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from ftd import machine
from ftd.engine import card_memory
from ftd.engine.card_experts import CardExperts
from ftd.engine.device import CUDA_CHUNK_TOKENS, Device, MakePages, Rates
from ftd.engine.device_chooser import DeviceChooser
from ftd.engine.expert_cache import EPOCH_HALF_LIVES, HALF_LIFE_STEPS, Clock
from ftd.engine.expert_plan import ExpertNeeds, Policy
from ftd.errors import OutOfMemory
from ftd.kernels import card_copy, copy_rate, dispatch, expert_rates
from ftd.kernels.device_weights import DeviceWeights
from ftd.kernels.expert_places import PoolConfig
from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.upload_ring import UploadRing

# Of the memory that is free on a card, so much stays free for other programs' growth
RESERVE_BYTES = 256 << 20
# Steps of more tokens use nearly all experts of a layer and stage whole layers instead of placing each one.
# With 37 % of 128 experts in slots 100 tokens of bf16 take 77 ms placed and 115 staged, 256 take 121 and 113;
# of q4_0 28 and 35, 44 and 35 (8 layers of 30b-a3b, H200).
MAX_PLACED_ROWS = 128
# Where arrays begin in memory that is shared out: whole lines of caches
_PAGE_ALIGNMENT = 256


def interpreter() -> Device:
    """Return Triton's interpreter, which runs kernels slowly on the processor."""
    return Device(
        name="interpreter", label="interpreter", free_bytes=machine.available_bytes, **_parts("cpu")
    )


def first() -> Device:
    """Return the first card, which must be there."""
    context_bytes, free_bytes = _first_look()
    return Device(
        name="cuda",
        label=torch.cuda.get_device_name(0),
        free_bytes=lambda: max(0, torch.cuda.mem_get_info(0)[0] + context_bytes - RESERVE_BYTES),
        chunk_tokens=CUDA_CHUNK_TOKENS,
        release=_release,
        used_bytes=lambda: context_bytes + max(0, free_bytes - torch.cuda.mem_get_info(0)[0]),
        context_bytes=context_bytes,
        **_parts("cuda"),
    )


def _parts(device: str) -> dict[str, Any]:
    """Return what makes the parts of an engine on a device of torch."""
    graph, pages = dispatch.get("graph", "cuda"), partial(_pages, device)
    outline_graph, outline_pages = partial(graph, device="meta"), partial(_pages, "meta")
    return {
        "make_graph": partial(graph, device=device),
        "make_pages": pages,
        "make_chooser": partial(DeviceChooser, device=device),
        "make_experts": partial(_experts, device),
        "hold_experts": CardExperts,
        "make_weights": partial(DeviceWeights, device),
        "make_ring": partial(UploadRing, device),
        "make_arena": partial(_arena, pages),
        "make_workspace": partial(card_memory.workspace, make_graph=outline_graph, make_pages=outline_pages),
        "rates": Rates(card_copy.device_rate, card_copy.host_rate, copy_rate.measure, expert_rates.measure),
    }


@lru_cache
def _first_look() -> tuple[int, int]:
    """Return what this process took of the card before anything was allocated, and what was free then."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    # More is not ours, unless a card is new to us
    return min(total_bytes - free_bytes, card_memory.CONTEXT_BYTES), free_bytes


def _release() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _experts(
    device: str, needs: ExpertNeeds, num_slots: int, num_chosen: int, policy: Policy, kept: Any
) -> ExpertSlots:
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
        looks_ahead=policy.looks_ahead,
    )
    return ExpertSlots(config, MAX_PLACED_ROWS, num_chosen, device, kept)


def _arena(make_pages: MakePages, num_bytes: int) -> MakePages:
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


def _pages(device: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    try:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            f"the device refused KV pages of shape {list(shape)}", "lower num_ctx or FTD_NUM_PARALLEL"
        ) from exc
