"""The experts of a model that a card cannot hold: makes their pool, splits misses, counts."""

import logging
from dataclasses import replace
from typing import Any

import ftd
from ftd import log
from ftd.engine import expert_plan, expert_store
from ftd.engine.device import Device
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.expert_tuner import Tuner, shifted
from ftd.engine.messages import Load
from ftd.engine.model_config import ModelConfig
from ftd.kernels import bandwidth, cpu, expert_split
from ftd.kernels._pool import Pool, isa_in_force
from ftd.kernels.expert_split import Point, Split

logger = logging.getLogger(__name__)

# Steps of more tokens stage all that is in no slot: 15 cores of a Xeon with AMX take 1.4 ms for an expert of
# 512 rows of 30b-a3b in bf16, its copy 0.19; of 256 rows 0.7, of 64 0.25, of 16 0.1
PROMPT_TOKENS = 4096


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
        kept: Any = None,
    ) -> None:
        assert config.experts is not None and device.make_experts is not None and device.rates is not None
        self._device, self._rates, self._needs = device, device.rates, needs
        self._num_chosen = config.experts.num_chosen
        self._share = expert_plan.share(load.experts)
        self._threads, self._load, self._hidden_size = threads, load, config.hidden_size
        self._table: Split | None = None
        self._tuner: Tuner | None = None
        self._policy = expert_plan.policy(load.experts_policy)
        self.pool = device.make_experts(needs, num_slots, self._num_chosen, self._policy, kept)
        if self._share != 1.0:
            tokens = PROMPT_TOKENS if self._shares_prompts() else 0
            self.pool.use_processor(threads, config.hidden_size, load.precision, tokens)

    def split(self) -> None:
        """Say how many of m misses are fetched: as measured on this machine, or what the load asked for."""
        num_experts = self._needs.num_experts
        if not self.pool.is_locked:
            logger.warning(log.fields("experts on the processor", reason=self.pool.lock_refusal))
            return
        if self._share is not None:
            quota = [round(self._share * misses) for misses in range(num_experts + 1)]
            self.pool.set_quota(quota)
            return
        if self._policy.is_paper:
            copy_rate, read_rate = self._rates.fetch(self.pool), bandwidth.measure(self._threads.num_threads)
            quota = expert_plan.paper_quota(copy_rate, read_rate, num_experts)
            logger.info(
                log.fields("experts split", policy=self._load.experts_policy, copy=copy_rate, read=read_rate)
            )
            self.pool.set_quota(quota)
            return
        points = expert_store.read(self._key(), num_experts)
        if points is None:
            table = self._rates.experts(self.pool, self._num_chosen)
            expert_store.write(self._key(), table.points)
        else:
            table = expert_split.tabulate(points, num_experts)
        logger.info(log.fields("experts split", kept=points is not None, **table.fields()))
        self.pool.set_quota(table.quota, table.warm)
        self.pool.set_ahead(table.misses_ahead)
        self.pool.share_prompts(None if table.prompts is None else table.prompts.count)
        self._table = table
        if self._device.name == "cuda":
            self._tuner = Tuner()

    def _shares_prompts(self) -> bool:
        """Whether the processor may run experts of long steps: where it has units for many rows."""
        is_measured = self._share is None and not self._policy.is_paper
        return is_measured and self._load.precision == "fast" and isa_in_force() == "amx"

    def notes(self) -> list[str]:
        """Return what people should know."""
        if self.pool.is_locked:
            return []
        return [
            "experts that are in no slot run on the processor: the system refused to lock memory for the "
            f"card ({self.pool.lock_refusal}); ulimit -l says how much it allows"
        ]

    def observe(self, num_rows: int, step_ns: int) -> None:
        """Take the time of a decode step; corrects the split of steps of one token."""
        tuner, table = self._tuner, self._table
        if tuner is None or table is None or num_rows != 1 or not tuner.observe(step_ns):
            return
        self.pool.set_quota(self._quota(tuner.shift), table.warm)
        if tuner.has_ended:
            logger.info(log.fields("experts split", corrected_by=tuner.best, trials=tuner.num_trials))
            if tuner.best:
                expert_store.write(self._key(), self._corrected(tuner.best))

    def _quota(self, shift: int) -> list[list[int]]:
        assert self._table is not None
        return [shifted(self._table.quota[0], shift), *self._table.quota[1:]]

    def _corrected(self, shift: int) -> list[Point]:
        """Return the points of the table, those of one token as they turned out to be best."""
        assert self._table is not None
        row = self._quota(shift)[0]
        return [
            replace(point, fetched=row[point.misses]) if point.tokens == 1 else point
            for point in self._table.points
        ]

    def _key(self) -> str:
        """Return what the measured times depend on."""
        needs = self._needs
        return " | ".join(
            (
                f"ftd {ftd.__version__}",
                self._device.label,
                cpu.describe(),
                f"{isa_in_force()} {self._threads.num_threads} threads {self._load.precision}",
                *(["long steps too"] if self._shares_prompts() else []),
                f"{' '.join(sorted(self.pool.formats))} {needs.record_bytes} bytes",
                f"{self._num_chosen} of {needs.num_experts} of {self._hidden_size}",
            )
        )

    def stats(self) -> dict[str, Any]:
        """Return fields of ``Stats``: what the pool has counted. Waits for the card."""
        counted, record_bytes = self.pool.counters(), self._needs.record_bytes
        kept = counted["fills"] + counted["warm_fills"] + counted["ahead_fills"]
        copied = kept + counted["transient_fills"] + counted["staged"]
        return {
            "expert_slots": self.pool.config.num_slots,
            "expert_reads": counted["uses"],
            "expert_hits": counted["hits"],
            "expert_fills": kept,
            "expert_transient_fills": counted["transient_fills"],
            "experts_on_cpu": counted["on_cpu"],
            "expert_copied_bytes": copied * record_bytes,
            "expert_cpu_bytes": (counted["on_cpu"] + counted["shared"]) * record_bytes,
            "expert_cpu_ns": self.pool.worker_ns,
            "expert_split": self.pool.quota_of_one()[1 : self._num_chosen + 1],
        }
