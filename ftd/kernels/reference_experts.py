"""ExpertOps: how ReferenceGraph records the choice of experts and what they compute."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.expert_ffn_ref import check_bank, expert_ffn
from ftd.kernels.quant import ExpertBank
from ftd.kernels.reference_recorder import Buffer, Floats, Ints, Recorder
from ftd.kernels.route_topk_ref import check as check_router
from ftd.kernels.route_topk_ref import route_topk
from ftd.kernels.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Handle of the experts that one layer's router chose; the graph that made it owns the memory."""

    num_experts: int
    num_chosen: int


class ExpertOps(Recorder):
    """The ops of mixtures of experts."""

    def __init__(self, pool: object = None, **limits: Any) -> None:
        super().__init__(pool, **limits)
        self._routed: dict[Routing, tuple[Ints, Floats]] = {}
        self._uses: dict[Routing, NDArray[np.int64]] = {}

    def route_topk(
        self,
        logits: Buffer,
        num_chosen: int,
        scoring: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        bias: Floats | None = None,
        num_groups: int = 1,
        top_groups: int = 1,
        group_top: int = 2,
    ) -> Routing:
        """Record the choice of experts by a router's logits; return the handle that expert_ffn takes."""
        self._refuse_finished()
        self._expect(logits, logits.width, "tokens")
        example = np.empty((0, logits.width), np.float32)
        check_router(example, num_chosen, scoring, bias, num_groups, top_groups, group_top)
        routing = Routing(logits.width, num_chosen)
        self._uses[routing] = np.zeros(logits.width + 1, np.int64)

        def run(step: Step) -> None:
            self._routed[routing] = ids, _ = route_topk(
                self.view(logits),
                num_chosen,
                scoring,
                renormalise,
                scale,
                bias,
                num_groups,
                top_groups,
                group_top,
            )
            counts = np.bincount(ids.reshape(-1), minlength=logits.width)
            self._uses[routing] += [*counts, np.count_nonzero(counts)]

        self._record(run)
        return routing

    def expert_ffn(
        self,
        out: Buffer,
        x: Buffer,
        routing: Routing,
        bank: ExpertBank,
        activation: str = "silu",
        limit: float = 7.0,
    ) -> None:
        """Record out = the weighted sum of what the chosen experts make of x; see expert_ffn_ref."""
        width, _ = check_bank(bank, activation)
        self._expect(x, width, "tokens")
        self._expect(out, width, "tokens")
        self._expect_routing(routing, bank)

        def run(step: Step) -> None:
            ids, weights = self._routed[routing]
            self._write(out, expert_ffn(self.view(x), ids, weights, bank, activation, limit, self._precision))

        self._record(run)

    def routed(self, routing: Routing) -> tuple[Ints, Floats]:
        """Return ids and weights [T, K] of the last step, valid until the next run."""
        return self._routed[routing]

    def expert_uses(self, routing: Routing) -> NDArray[np.int64]:
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        return self._uses[routing]

    def _expect_routing(self, routing: Routing, bank: ExpertBank) -> None:
        if routing not in self._uses:
            raise ValueError("the routing belongs to another graph")
        if routing.num_experts != bank.num_experts:
            raise ValueError(f"the router has {routing.num_experts} experts, the bank {bank.num_experts}")
