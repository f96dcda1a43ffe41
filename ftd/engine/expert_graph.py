"""Which graph a model gets: the device's own, or one with a pool of the experts that a card cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ftd.engine import expert_plan
from ftd.engine.device import Device
from ftd.engine.graphs import Graph
from ftd.engine.messages import Load
from ftd.engine.model_config import ModelConfig
from ftd.engine.sizing import Sizes
from ftd.kernels._pool import Pool

if TYPE_CHECKING:
    from ftd.engine.card_experts import CardExperts


def make(
    device: Device, sizes: Sizes, config: ModelConfig, load: Load, threads: Pool, kept: Any = None
) -> tuple[Callable[..., Graph], CardExperts | None]:
    """Return what makes the graph, and the experts that it takes from a pool, if any.

    kept: what the pool before left. Raises InvalidOption if ``load.experts`` makes no sense.
    """
    expert_plan.share(load.experts)
    expert_plan.policy(load.experts_policy)
    if sizes.experts is None:
        return device.make_graph, None
    assert device.hold_experts is not None
    experts = device.hold_experts(device, sizes.experts, sizes.num_slots, config, load, threads, kept)
    make_graph: Any = partial(device.make_graph, experts=experts.pool)
    return make_graph, experts
