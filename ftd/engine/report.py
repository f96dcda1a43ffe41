"""What an engine says of itself: the plan before anything is allocated, and what came of it."""

import logging
from typing import Any

import msgspec

from ftd import log
from ftd.engine.device import Device
from ftd.engine.messages import Load, Memory, Ready
from ftd.engine.sizing import Sizes

logger = logging.getLogger(__name__)

# Of its plan an engine may take so much more before somebody should hear of it
TOLERANCE = 1.02


def planned(device: Device, sizes: Sizes, load: Load) -> Memory:
    """Return the plan and log it in one line."""
    made, experts = sizes.plan, sizes.experts
    staged_bytes = 0 if experts is None else sizes.staged_bytes
    memory = Memory(
        place=device.label,
        reason=device.reason,
        weight_bytes=made.weight_bytes,
        kv_bytes=made.kv_bytes + made.state_bytes,
        workspace_bytes=made.workspace_bytes,
        overhead_bytes=made.overhead_bytes - staged_bytes,
        slots=sizes.num_slots,
        slot_bytes=sizes.slot_bytes,
        experts=0 if experts is None else experts.num_layers * experts.num_experts,
        host_expert_bytes=0 if experts is None else experts.num_bytes,
        budget_bytes=load.device_memory_bytes if device.name == "cuda" else load.host_memory_bytes,
    )
    logger.info(
        log.fields(
            "memory planned",
            device=memory.place,
            total=total(memory),
            budget=memory.budget_bytes,
            weights=memory.weight_bytes,
            kv=memory.kv_bytes,
            context_tokens=made.context_tokens,
            sequences=made.max_sequences,
            workspace=memory.workspace_bytes,
            overhead=memory.overhead_bytes,
            slots=memory.slots,
            slot_bytes=memory.slot_bytes,
            host_experts=memory.host_expert_bytes,
        )
    )
    return memory


def total(memory: Memory) -> int:
    """Return the bytes that the plan takes where the model computes."""
    parts = memory.weight_bytes, memory.kv_bytes, memory.workspace_bytes, memory.overhead_bytes
    return sum(parts) + memory.slot_bytes


def found(memory: Memory, used_bytes: int, notes: list[str]) -> Memory:
    """Return the plan with what the process takes of a card (0: it has none); warn if that is more."""
    wanted = total(memory)
    fields: dict[str, Any] = {"used": used_bytes, "planned": wanted, "budget": memory.budget_bytes}
    if used_bytes > wanted * TOLERANCE:
        logger.warning(log.fields("more memory taken than planned", **fields))
    elif used_bytes:
        logger.info(log.fields("memory taken", **fields))
    return msgspec.structs.replace(memory, used_bytes=used_bytes, notes=notes)


def loaded(message: Ready, **fields: Any) -> None:
    """Log what was loaded. fields: what the message does not say."""
    logger.info(
        log.fields(
            "load done",
            **fields,
            context_tokens=message.context_tokens,
            weight_bytes=message.weight_bytes,
            kv_bytes=message.kv_bytes,
            workspace_bytes=message.workspace_bytes,
            threads=message.num_threads,
            seconds=message.load_ns / 1e9,
        )
    )
