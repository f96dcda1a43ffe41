"""The experts of a model that a card cannot hold: makes their pool, splits misses, counts."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ftd import log
from ftd.engine import expert_plan
from ftd.engine.devices import Device
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.graphs import Graph
from ftd.engine.messages import Load
from ftd.engine.model_config import ModelConfig
from ftd.engine.sizing import Sizes
from ftd.kernels._pool import Pool

logger = logging.getLogger(__name__)


class CardExperts:
    """Owns the pool of one model; None of this is there where all experts fit."""

    def __init__(
        self,
        device: Device,
        needs: ExpertNeeds,
        num_slots: int,
        config: ModelConfig,
        load: Load,
        threads: Pool,
    ) -> None:
        assert config.experts is not None and device.make_experts is not None
        self._device, self._needs = device, needs
        self._num_chosen = config.experts.num_chosen
        self._share = expert_plan.share(load.experts)
        self.pool = device.make_experts(needs, num_slots, self._num_chosen)
        if self._share != 1.0:
            self.pool.use_processor(threads, config.hidden_size, load.precision)

    def split(self) -> None:
        """Say how many of m misses are fetched: measured on the loaded pool, or what the load asked for."""
        if self._share is not None:
            quota = [round(self._share * misses) for misses in range(self._needs.num_experts + 1)]
            self.pool.set_quota(quota, [1] * len(quota))
            return
        split = self._device.measure_experts(self.pool, self._num_chosen)
        logger.info(log.fields("experts measured", **split.fields()))
        self.pool.set_quota(split.quota, split.warm)

    def stats(self) -> dict[str, int]:
        """Return fields of ``Stats``: what the pool has counted. Waits for the card."""
        counted = self.pool.counters()
        return {
            "expert_slots": self.pool.config.num_slots,
            "expert_reads": counted["uses"],
            "expert_hits": counted["hits"],
            "expert_fills": counted["fills"] + counted["warm_fills"],
            "expert_transient_fills": counted["transient_fills"],
            "experts_on_cpu": counted["on_cpu"],
        }

    @property
    def moved_bytes(self) -> int:
        """Bytes of the slots less those of the banks: what lies on the card instead of all experts."""
        moved: int = self.pool.num_bytes - self.pool.bank_bytes
        return moved


def make(
    device: Device, sizes: Sizes, config: ModelConfig, load: Load, threads: Pool
) -> tuple[Callable[..., Graph], CardExperts | None]:
    """Return what makes the graph, and the experts that it takes from a pool, if any.

    Raises InvalidOption if ``load.experts`` makes no sense.
    """
    expert_plan.share(load.experts)
    if sizes.experts is None:
        return device.make_graph, None
    experts = CardExperts(device, sizes.experts, sizes.num_slots, config, load, threads)
    make_graph: Any = partial(device.make_graph, experts=experts.pool)
    return make_graph, experts
