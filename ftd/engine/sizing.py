"""Decides every size of an engine before anything is allocated: the plan, and slots of experts on a card."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from ftd import log, machine
from ftd.engine import card_memory, devices, expert_plan, plan
from ftd.engine.card_memory import Workspace
from ftd.engine.device import Device
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.messages import Load
from ftd.engine.model import workspace_needs
from ftd.engine.model_config import ModelConfig
from ftd.engine.plan import MemoryNeeds, Plan
from ftd.engine.weights import Weights
from ftd.errors import OutOfMemory
from ftd.ftw.format import FtwConfig
from ftd.units import format_bytes

logger = logging.getLogger(__name__)

# Part of the slots that longer chunks of prompts may cost
MOST_SLOTS_FOR_CHUNKS = 0.1


class Sizes(msgspec.Struct, frozen=True):
    """The plan; of a card that cannot hold all experts, what they need and how many slots it has for them."""

    plan: Plan
    experts: ExpertNeeds | None = None
    num_slots: int = 0

    @property
    def staged_bytes(self) -> int:
        """Bytes of the slots for whole layers, which the plan counts as overhead."""
        return 0 if self.experts is None else self.experts.staged_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots, staged ones too."""
        return 0 if self.experts is None else self.num_slots * self.experts.record_bytes + self.staged_bytes


class Model(msgspec.Struct, frozen=True):
    """What sizes depend on: the config's blobs, and weights that are only looked at to see their shapes.

    kept_bytes: of weights that are where they belong, on the device; has_all_experts: there too.
    """

    file_config: FtwConfig
    config: ModelConfig
    outline: Callable[[], Weights]
    kept_bytes: int = 0
    has_all_experts: bool = False


def place(load: Load, model: Model) -> tuple[Device, Sizes]:
    """Choose the device and decide the sizes there; "auto" takes the processor where a card is too small.

    Raises what ``devices.choose`` and ``decide`` do.
    """
    device = devices.choose(load.device)
    try:
        return device, decide(load, model, device)
    except OutOfMemory as exc:
        if load.device != "auto" or device.name == "cpu" or model.kept_bytes:
            raise
        logger.warning(log.fields("device chosen", device="cpu", reason=exc.message))
        device = devices.cpu(exc.message)
    return device, decide(load, model, device)


def decide(load: Load, model: Model, device: Device) -> Sizes:
    """Decide from the model, the window and the free memory. Raises OutOfMemory, with the numbers."""
    available = device.free_bytes() + model.kept_bytes
    budgets = {"cuda": load.device_memory_bytes, "cpu": load.host_memory_bytes}
    if budget := budgets.get(device.name, 0):
        available = min(available, budget)
    weight_bytes = sum(blob.size for blob in model.file_config.blobs)
    needs = _expert_needs(model.file_config)
    workspace = device.workspace(model.config, model.outline, load.precision, plan.DEFAULT_PAGE_SIZE)
    if device.name == "cpu" or needs is None:
        return Sizes(_plan(load, model, device, weight_bytes, available, workspace))
    dense_bytes = weight_bytes - expert_bytes(model.file_config)
    make = partial(_plan, load, model, device, dense_bytes, available, workspace)
    made = make()
    if expert_plan.all_fit(needs, available - made.total_bytes, load.expert_slots):
        return Sizes(replace(made, weight_bytes=weight_bytes))
    if model.has_all_experts:
        raise OutOfMemory("not enough device memory to keep all experts there", "load the model again")
    _check_host(load, needs.num_bytes)
    try:
        return _with_slots(load, device, needs, available, make)
    except OutOfMemory:
        return _with_slots(load, device, replace(needs, staged_layers=1), available, make)


def _with_slots(
    load: Load, device: Device, needs: ExpertNeeds, available: int, make: Callable[..., Plan]
) -> Sizes:
    """Decide how much of a card becomes slots for experts. Raises OutOfMemory."""
    made = make(staged_bytes=needs.staged_bytes)
    # More windows than one are worth no more than slots
    window_bytes = made.max_pages_per_sequence * made.kv_bytes // made.num_pages
    most_kv = max(window_bytes, (available - made.total_bytes + made.kv_bytes) // 2)
    if made.kv_bytes > most_kv and not load.kv_bytes:
        make = partial(make, kv_bytes=most_kv)
        made = make(staged_bytes=needs.staged_bytes)
    sizes = Sizes(made, needs, _num_slots(load, needs, available, made))
    if device.name != "cuda" or load.prefill_chunk_tokens:
        return sizes
    # Each chunk of a prompt streams what is in no slot: chunks are longer, unless that takes too many slots
    chunk = plan.streaming_chunk_tokens(needs.num_bytes - sizes.num_slots * needs.record_bytes)
    while chunk > made.prefill_chunk_tokens:
        with contextlib.suppress(OutOfMemory):
            longer = make(staged_bytes=needs.staged_bytes, chunk_tokens=chunk)
            fewer = _num_slots(load, needs, available, longer)
            if longer.num_pages == made.num_pages and fewer >= (1 - MOST_SLOTS_FOR_CHUNKS) * sizes.num_slots:
                return Sizes(longer, needs, fewer)
        chunk //= 2
    return sizes


def _num_slots(load: Load, needs: ExpertNeeds, available: int, made: Plan) -> int:
    """Return how many slots there are beside a plan that has the staged ones."""
    return expert_plan.num_slots(needs, available - made.total_bytes + needs.staged_bytes, load.expert_slots)


def _plan(
    load: Load,
    model: Model,
    device: Device,
    weight_bytes: int,
    available: int,
    workspace: Workspace | None,
    *,
    staged_bytes: int = 0,
    chunk_tokens: int = 0,
    kv_bytes: int = 0,
) -> Plan:
    """Make the plan. staged_bytes: of slots that a card needs where it cannot hold all experts."""
    config = model.config
    max_sequences = load.max_sequences or plan.DEFAULT_MAX_SEQUENCES
    fixed_bytes, token_bytes = workspace_needs(config, max_sequences)
    overhead_bytes = staged_bytes
    if device.name == "cuda":
        overhead_bytes += card_memory.overhead(device.context_bytes, max_sequences, staged_bytes > 0)
    needs = MemoryNeeds(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=config.kv_bytes_per_token(4 if load.precision == "f32" else 2),
        workspace_bytes=fixed_bytes,
        workspace_bytes_per_token=token_bytes,
        max_context_tokens=config.max_context_tokens,
        state_bytes=0 if config.recurrent is None else config.recurrent.state_bytes,
        overhead_bytes=overhead_bytes,
        workspace=workspace,
    )
    return plan.make(
        needs,
        free_bytes=available,
        context_tokens=load.context_tokens,
        max_sequences=load.max_sequences,
        kv_bytes=load.kv_bytes or kv_bytes,
        prefill_chunk_tokens=load.prefill_chunk_tokens
        or chunk_tokens
        or device.chunk_tokens
        or plan.DEFAULT_CHUNK_TOKENS,
        whole_prompts=config.is_encoder,
    )


def _check_host(load: Load, num_bytes: int) -> None:
    """Raise OutOfMemory unless host memory holds the experts."""
    available = machine.available_bytes()
    limit = "free"
    if 0 < load.host_memory_bytes < available:
        available, limit = load.host_memory_bytes, "allowed by FTD_HOST_MEMORY"
    if num_bytes > available:
        raise OutOfMemory(
            f"not enough host memory for experts that the device does not hold: needed "
            f"{format_bytes(num_bytes)}, {limit} {format_bytes(available)}",
            "use a smaller quantisation, free memory, or raise FTD_HOST_MEMORY or FTD_GPU_MEMORY",
        )


def expert_bytes(file_config: FtwConfig) -> int:
    """Return the bytes of all experts."""
    experts = file_config.experts
    return 0 if experts is None else sum(file_config.blobs[index].size for index in experts.blobs)


def _expert_needs(file_config: FtwConfig) -> ExpertNeeds | None:
    experts = file_config.experts
    if experts is None:
        return None
    return ExpertNeeds(
        num_layers=len(experts.layers),
        num_experts=experts.num_experts,
        record_bytes=experts.record_bytes,
    )
