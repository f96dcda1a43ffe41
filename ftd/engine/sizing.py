"""Decides every size of an engine before anything is allocated: the plan, and slots of experts on a card."""

import logging
from dataclasses import dataclass

from ftd import log
from ftd.engine import devices, expert_plan, plan
from ftd.engine.devices import Device
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.messages import Load
from ftd.engine.model import workspace_needs
from ftd.engine.model_config import ModelConfig
from ftd.engine.plan import MemoryNeeds, Plan
from ftd.errors import OutOfMemory
from ftd.ftw.format import FtwConfig

logger = logging.getLogger(__name__)

# Part of the slots that longer chunks of prompts may cost
MOST_SLOTS_FOR_CHUNKS = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The plan; of a card that cannot hold all experts, what they need and how many slots it has for them."""

    plan: Plan
    experts: ExpertNeeds | None = None
    num_slots: int = 0


def place(
    load: Load, file_config: FtwConfig, config: ModelConfig, resident_bytes: int = 0
) -> tuple[Device, Sizes]:
    """Choose the device and decide the sizes there; "auto" takes the processor where a card is too small.

    Raises what ``devices.choose`` and ``decide`` do.
    """
    device = devices.choose(load.device, config.architecture)
    try:
        return device, decide(load, file_config, config, device, resident_bytes)
    except OutOfMemory as exc:
        if load.device != "auto" or device.name == "cpu":
            raise
        logger.warning(log.fields("device chosen", device="cpu", reason=exc.message))
    device = devices.cpu()
    return device, decide(load, file_config, config, device, resident_bytes)


def decide(
    load: Load, file_config: FtwConfig, config: ModelConfig, device: Device, resident_bytes: int = 0
) -> Sizes:
    """Decide from what the config's blobs, the window and the free memory are. Raises OutOfMemory.

    resident_bytes: weights that are in memory already, and so are not free but need no more.
    """
    free_bytes = device.free_bytes() + resident_bytes
    if device.name == "cuda" and load.device_memory_bytes:
        free_bytes = min(free_bytes, load.device_memory_bytes)
    weight_bytes = sum(blob.size for blob in file_config.blobs)
    needs = _expert_needs(file_config)
    if device.name == "cpu" or needs is None:
        return Sizes(_plan(load, config, device, weight_bytes, free_bytes))
    expert_bytes = sum(file_config.blobs[index].size for index in _expert_blobs(file_config))
    made = _plan(load, config, device, weight_bytes - expert_bytes, free_bytes)
    num_slots = expert_plan.num_slots(needs, free_bytes - made.total_bytes, load.expert_slots)
    if num_slots is None:
        return Sizes(made)
    # Each chunk of a prompt streams what is in no slot: chunks are longer, unless that takes too many slots
    chunk = plan.streaming_chunk_tokens(needs.num_bytes - num_slots * needs.record_bytes)
    while device.name == "cuda" and not load.prefill_chunk_tokens and chunk > made.prefill_chunk_tokens:
        longer = _plan(load, config, device, weight_bytes - expert_bytes, free_bytes, chunk)
        rest = free_bytes - longer.total_bytes
        if rest >= 2 * needs.num_experts * needs.record_bytes:
            fewer = expert_plan.num_slots(needs, rest, load.expert_slots)
            if fewer is not None and fewer >= (1 - MOST_SLOTS_FOR_CHUNKS) * num_slots:
                return Sizes(longer, needs, fewer)
        chunk //= 2
    return Sizes(made, needs, num_slots)


def _plan(
    load: Load, config: ModelConfig, device: Device, weight_bytes: int, free_bytes: int, chunk: int = 0
) -> Plan:
    max_sequences = load.max_sequences or plan.DEFAULT_MAX_SEQUENCES
    fixed_bytes, token_bytes = workspace_needs(config, max_sequences)
    needs = MemoryNeeds(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=config.kv_bytes_per_token(4 if load.precision == "f32" else 2),
        workspace_bytes=fixed_bytes,
        workspace_bytes_per_token=token_bytes,
        max_context_tokens=config.max_context_tokens,
        state_bytes=0 if config.recurrent is None else config.recurrent.state_bytes,
    )
    return plan.make(
        needs,
        free_bytes=free_bytes,
        context_tokens=load.context_tokens,
        max_sequences=load.max_sequences,
        kv_bytes=load.kv_bytes,
        prefill_chunk_tokens=load.prefill_chunk_tokens
        or chunk
        or device.chunk_tokens
        or plan.DEFAULT_CHUNK_TOKENS,
        whole_prompts=config.is_encoder,
    )


def _expert_blobs(file_config: FtwConfig) -> list[int]:
    return [] if file_config.experts is None else file_config.experts.blobs


def _expert_needs(file_config: FtwConfig) -> ExpertNeeds | None:
    experts = file_config.experts
    if experts is None:
        return None
    return ExpertNeeds(
        num_layers=len(experts.layers),
        num_experts=experts.num_experts,
        record_bytes=experts.record_bytes,
    )
