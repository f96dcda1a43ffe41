"""Decides every size of an engine before anything is allocated: the plan, and slots of experts on a card."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ftd import log
from ftd.engine import card_memory, devices, expert_plan, memory, plan
from ftd.engine.card_memory import Workspace
from ftd.engine.devices import Device
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The plan; of a card that cannot hold all experts, what they need and how many slots it has for them."""

    plan: Plan
    experts: ExpertNeeds | None = None
    num_slots: int = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots, staged ones too."""
        if self.experts is None:
            return 0
        return (self.num_slots + 2 * self.experts.num_experts) * self.experts.record_bytes


@dataclass(frozen=True, slots=True)
class Model:
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
    device = devices.choose(load.device, model.config.architecture)
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
    budget = load.device_memory_bytes if device.name == "cuda" else load.host_memory_bytes
    if device.name != "interpreter" and budget:
        available = min(available, budget)
    weight_bytes = sum(blob.size for blob in model.file_config.blobs)
    needs = _expert_needs(model.file_config)
    workspace = device.workspace(model.config, model.outline, load.precision, plan.DEFAULT_PAGE_SIZE)
    if device.name == "cpu" or needs is None:
        return Sizes(_plan(load, model, device, weight_bytes, available, workspace))
    dense_bytes = weight_bytes - expert_bytes(model.file_config)
    made = _plan(load, model, device, dense_bytes, available, workspace)
    if expert_plan.num_slots(needs, available - made.total_bytes) is None:
        return Sizes(made)
    if model.has_all_experts:
        raise OutOfMemory("not enough device memory to keep all experts there", "load the model again")
    _check_host(load, needs.num_bytes)
    staged = 2 * needs.num_experts * needs.record_bytes
    made = _plan(load, model, device, dense_bytes, available, workspace, staged)
    num_slots = expert_plan.num_slots(needs, available - made.total_bytes + staged)
    assert num_slots is not None
    return Sizes(made, needs, num_slots)


def _plan(
    load: Load,
    model: Model,
    device: Device,
    weight_bytes: int,
    available: int,
    workspace: Workspace | None,
    staged_bytes: int = 0,
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
        kv_bytes=load.kv_bytes,
        prefill_chunk_tokens=load.prefill_chunk_tokens or device.chunk_tokens or plan.DEFAULT_CHUNK_TOKENS,
        whole_prompts=config.is_encoder,
    )


def _check_host(load: Load, num_bytes: int) -> None:
    """Raise OutOfMemory unless host memory holds the experts."""
    available = memory.free_bytes()
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
