"""The ops of mixtures of experts in a recorded GPU program: who is chosen, and what they compute."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from ftd.kernels.cuda_program import DeviceBuffer, Op, Product, RmsNorm
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.device_matrix import DeviceBank
from ftd.kernels.expert_ffn_triton import expert_ffn_into
from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.expert_workspace import Workspace
from ftd.kernels.look_ahead_triton import MAX_PAIRS
from ftd.kernels.route_topk_triton import route_topk_into
from ftd.kernels.router_triton import MAX_TOKENS, Expected, router

# Larger steps compute experts in parts of so many tokens: their memory is K times that of other activations,
# and reading a layer's weights once more takes a fiftieth of the time
MOST_EXPERT_ROWS = 4096
_BIAS = 3  # among the options of route_topk


@dataclass(slots=True, eq=False)
class DeviceRouting:
    """Handle of chosen experts: ids and weights [max_tokens, K], and counters of uses [E + 1]."""

    num_experts: int
    num_chosen: int
    ids: torch.Tensor
    weights: torch.Tensor
    uses: torch.Tensor


@dataclass(eq=False)
class Route(Op):
    """Choose each token's experts by its router logits."""

    READS, WRITES, EXACT = ("logits",), (), ("logits",)
    logits: DeviceBuffer
    routing: DeviceRouting
    options: tuple[Any, ...]

    @property
    def bias(self) -> torch.Tensor | None:
        """What is added to scores where experts are chosen."""
        found: torch.Tensor | None = self.options[_BIAS]
        return found

    def run(self, step: DeviceStep) -> None:
        num = step.num_tokens
        route_topk_into(
            self.logits.rows(step),
            self.routing.num_chosen,
            *self.options,
            kv_index=step.kv_index,
            ids=self.routing.ids[:num],
            weights=self.routing.weights[:num],
        )


@dataclass(eq=False)
class Router(Op):
    """The norm of x, the router's product of it and the choice: one kernel for few tokens."""

    READS, WRITES, EXACT = ("x",), ("normed", "logits"), ("logits",)
    norm: RmsNorm
    product: Product
    route: Route
    arrivals: torch.Tensor
    expected: Expected | None = None

    @property
    def x(self) -> DeviceBuffer:
        """What is normalised."""
        return self.norm.x

    @property
    def normed(self) -> DeviceBuffer:
        """What the experts read."""
        return self.norm.out

    @property
    def logits(self) -> DeviceBuffer:
        """Nobody reads them but the choice."""
        return self.route.logits

    def run(self, step: DeviceStep) -> None:
        num, routing = step.num_tokens, self.route.routing
        if num > MAX_TOKENS:
            for op in (self.norm, self.product, self.route):
                op.run(step)
            return
        router(
            self.x.rows(step),
            (self.norm.weight, self.norm.eps),
            self.product.weight,
            self.product.bias,
            routing.num_chosen,
            *self.route.options,
            kv_index=step.kv_index,
            normed=self.normed.rows(step),
            logits=self.logits.rows(step),
            arrivals=self.arrivals[:num],
            ids=routing.ids[:num],
            weights=routing.weights[:num],
            expected=_of(self.expected, num),
        )


@dataclass(eq=False)
class Experts(Op):
    """out = the weighted sum of what the chosen experts make of x; ``add``: out += scale * that."""

    READS, WRITES = ("x", "added"), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    routing: DeviceRouting
    bank: DeviceBank
    activation: str
    limit: float
    precision: str
    add: bool = False
    scale: float = 1.0
    workspace: Workspace | None = None

    @property
    def added(self) -> list[DeviceBuffer]:
        """What the sum is added to."""
        return [self.out] if self.add else []

    def run(self, step: DeviceStep) -> None:
        num = step.num_tokens
        ids, weights = self.routing.ids[:num], self.routing.weights[:num]
        x, out = self.x.rows(step), self.out.rows(step)
        self._compute(x, ids, weights, self.bank, out, self.add, self.routing.uses)

    def _compute(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        bank: DeviceBank,
        out: torch.Tensor,
        add: bool,
        uses: torch.Tensor | None = None,
    ) -> None:
        assert self.workspace is not None, "the program has no memory yet"
        for first in range(0, len(x), MOST_EXPERT_ROWS):
            rows = slice(first, first + MOST_EXPERT_ROWS)
            expert_ffn_into(
                x[rows],
                ids[rows],
                weights[rows],
                bank,
                self.activation,
                self.limit,
                self.precision,
                out=out[rows],
                add=add,
                add_scale=self.scale,
                workspace=self.workspace,
                uses=uses,
            )


@dataclass(eq=False)
class CachedExperts(Experts):
    """The same with banks in host memory: experts compute from the slots of a pool.

    Few tokens: those that are in slots compute while the others are fetched. Many: layers are staged.
    """

    pool: ExpertSlots = field(kw_only=True)
    row: int = field(kw_only=True)
    expected: Expected | None = None

    def __post_init__(self) -> None:
        self.bank = self.pool.resident_bank(self.row, self.bank.layer, self.bank.matrices)

    def is_fixed(self, num_tokens: int) -> bool:
        return self.pool.takes(num_tokens)

    def run(self, step: DeviceStep) -> None:
        num, pool, stages = step.num_tokens, self.pool, self.pool.stages
        x, out = self.x.rows(step), self.out.rows(step)
        ids, weights = self.routing.ids[:num], self.routing.weights[:num]
        if pool.takes(num):
            if self.row == 0:
                pool.advance()
            expected = _of(self.expected, num)
            next_ids = None if expected is None else expected.ids[:num]
            placement = pool.place(self.row, x, ids, weights, next_ids)
            self._compute(x, placement.hits, weights, self.bank, out, self.add)
            pool.join()
            fetched = DeviceBank(self.bank.layer, self.bank.matrices, placement.slot_of)
            self._compute(x, placement.fills, weights, fetched, out, True)
            pool.collect(self.row, out, placement, self.scale)
            return
        if self.row == 0:
            pool.advance()
            stages.begin(num)
        ids = stages.share(self.row, x, ids, weights, self.routing.uses)
        stages.wait(self.row)
        bank = stages.bank(self.row, self.bank.layer, self.bank.matrices)
        self._compute(x, ids, weights, bank, out, self.add, self.routing.uses)
        stages.seed(self.row, ids)
        stages.leave(self.row)
        stages.collect_share(self.row, out, self.scale)


def look_ahead(program: list[Op]) -> None:
    """Let routers choose for the next layer with experts too, where both choose alike."""
    layers: list[tuple[Router, CachedExperts]] = []
    last: Router | None = None
    for op in program:
        if isinstance(op, Router):
            last = op
        elif isinstance(op, CachedExperts) and last is not None:
            layers.append((last, op))
    made: dict[tuple[int, ...], Expected] = {}
    for (router_op, experts), (following, after) in pairwise(layers):
        if after.row != experts.row + 1 or not _is_alike(router_op, following):
            continue
        weight, chosen = following.product.weight, following.route.routing.num_chosen
        # What a layer reads the one before must not write over
        key = (*weight.shape, chosen, experts.row % 2)
        if key not in made:
            made[key] = _expected(following)
        router_op.expected = experts.expected = replace(
            made[key], weight=weight, weight_bias=following.product.bias, bias=following.route.bias
        )


def _of(expected: Expected | None, num: int) -> Expected | None:
    """Return what is expected in a step of ``num`` tokens, if that is few enough."""
    return expected if expected is not None and num <= len(expected.ids) else None


def _is_alike(one: Router, other: Router) -> bool:
    """Return whether two routers differ in values alone."""

    def kind(op: Router) -> tuple[object, ...]:
        weight, route = op.product.weight, op.route
        options = [None if each is route.bias else each for each in route.options]
        stride = weight.planes[0][0].stride(0)
        return weight.format, weight.shape, stride, route.routing.num_chosen, options

    biases = [(op.product.bias is None, op.route.bias is None) for op in (one, other)]
    return kind(one) == kind(other) and biases[0] == biases[1]


def _expected(op: Router) -> Expected:
    weight, chosen = op.product.weight, op.route.routing.num_chosen
    rows, device = min(MAX_TOKENS, MAX_PAIRS // chosen), op.route.routing.ids.device
    return Expected(
        weight,
        None,
        None,
        logits=torch.zeros((rows, weight.shape[0]), device=device),
        arrivals=torch.zeros(rows, dtype=torch.int32, device=device),
        ids=torch.zeros((rows, chosen), dtype=torch.int32, device=device),
        weights=torch.zeros((rows, chosen), device=device),
    )
