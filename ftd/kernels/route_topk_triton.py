"""route_topk on a GPU: one program a token, one warp, no memory but the results.

Ranks become whole numbers that order like them, with the expert's number in the low bits: one maximum of
int64 then finds the best expert, of equals the lowest, and no two are equal. Scores are computed in float64
as the reference does, so that both choose the same experts; there are at most E + K of them a token.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.route_topk_ref import check
from ftd.kernels.shapes import expect, expect_range, power_of_two

MAX_EXPERTS = 1 << 16  # the low bits of a rank
MAX_CHOSEN = 32

_LOW_BITS = tl.constexpr(16)
_LOW_MASK = tl.constexpr(0xFFFF)
_LAST = tl.constexpr(-(2**63) + 1)  # ranks behind every expert


@triton.jit
def _scores(logits, top, total, IS_SIGMOID: tl.constexpr):
    """Return float32 scores of ``logits`` f64; top and total belong to softmax."""
    scores = 1.0 / (1.0 + tl.exp(-logits)) if IS_SIGMOID else tl.exp(logits - top) / total
    return scores.to(tl.float32)


@triton.jit
def _ranks(values, index, is_known):
    """Return int64 that order like ``values`` f32, of equals the lower ``index`` first, NaN as -inf."""
    values = tl.where(values == values, values, float("-inf"))  # noqa: PLR0124
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    ranks = (ordered << _LOW_BITS) + (-index + _LOW_MASK).to(tl.int64)
    return tl.where(is_known, ranks, _LAST)


@triton.jit
def _best_groups(
    values,
    index,
    is_known,
    G: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_TOP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Return which of [GROUPS] are the best, of equals the lowest; a group counts its best's sum."""
    ranks = _ranks(values, index, is_known)
    totals = tl.zeros((GROUPS,), tl.float64)
    for _ in tl.static_range(GROUP_TOP):
        best = tl.max(ranks, axis=1)
        ordered = (best >> _LOW_BITS).to(tl.int32)
        bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
        totals += bits.to(tl.float32, bitcast=True).to(tl.float64)
        ranks = tl.where(ranks == best[:, None], _LAST, ranks)
    group = tl.arange(0, GROUPS)
    totals = tl.where(totals == totals, totals, float("-inf"))  # noqa: PLR0124
    is_left = group < G
    is_best = tl.zeros((GROUPS,), tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        highest = tl.max(tl.where(is_left, totals, float("-inf")), axis=0)
        first = tl.min(tl.where(is_left & (totals == highest), group, GROUPS), axis=0)
        is_best = tl.where(group == first, 1, is_best)
        is_left = is_left & (group != first)
    return is_best


@triton.jit
def choose_experts(
    # pointers
    row, bias,
    # sizes
    E, scale,
    # meta
    K: tl.constexpr, G: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr,
    GROUPS: tl.constexpr, MEMBERS: tl.constexpr, CHOICES: tl.constexpr, IS_SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Return ids [CHOICES] i32 and weights [CHOICES] f32 of the experts of one row of logits."""
    # ---- scores and ranks, [GROUPS, MEMBERS]
    choice = tl.arange(0, CHOICES)
    member = tl.arange(0, MEMBERS)
    size = E // G
    index = tl.arange(0, GROUPS)[:, None] * size + member[None, :]
    is_known = (tl.arange(0, GROUPS) < G)[:, None] & (member < size)[None, :]
    # Other programs may have written these: not from the first cache, which knows nothing of them.
    narrow = tl.load(row + index, mask=is_known, other=float("-inf"), cache_modifier=".cg")
    wide = narrow.to(tl.float64)
    top = tl.max(tl.max(wide, axis=1), axis=0)
    total = tl.sum(tl.sum(tl.exp(wide - top), axis=1), axis=0)
    values = narrow  # ranks as its softmax does, without its roundings
    if IS_SIGMOID or HAS_BIAS or G > 1:
        values = _scores(wide, top, total, IS_SIGMOID)
    if HAS_BIAS:
        values += tl.load(bias + index, mask=is_known, other=0.0)
    if G > 1:
        is_best = _best_groups(values, index, is_known, G, TOP_GROUPS, GROUP_TOP, GROUPS)
        values = tl.where(is_best[:, None] != 0, values, float("-inf"))
    ranks = _ranks(values, index, is_known)

    # ---- the K best, one after the other
    chosen = tl.zeros((CHOICES,), tl.int32)
    for k in tl.static_range(K):
        best = tl.max(tl.max(ranks, axis=1), axis=0)
        expert = (-(best & _LOW_MASK) + _LOW_MASK).to(tl.int32)
        chosen = tl.where(choice == k, expert, chosen)
        ranks = tl.where(ranks == best, _LAST, ranks)

    # ---- weights
    is_choice = choice < K
    picked = tl.load(row + chosen, mask=is_choice, other=float("-inf"), cache_modifier=".cg").to(tl.float64)
    if RENORMALISE and not IS_SIGMOID:
        powers = tl.exp(picked - tl.max(picked, axis=0))
        result = powers / tl.sum(powers, axis=0)
    else:
        result = _scores(picked, top, total, IS_SIGMOID).to(tl.float64)
        if RENORMALISE:
            result = result / (tl.sum(tl.where(is_choice, result, 0.0), axis=0) + 1e-20)
    return chosen, (result * scale).to(tl.float32)


@triton.jit
def store_choice(ids, weights, chosen, result, is_padding, K: tl.constexpr, CHOICES: tl.constexpr):
    """Store what ``choose_experts`` returned for one token; a padding row chooses nothing."""
    choice = tl.arange(0, CHOICES)
    tl.store(ids + choice, tl.where(is_padding, -1, chosen), mask=choice < K)
    tl.store(weights + choice, tl.where(is_padding, 0.0, result), mask=choice < K)


@triton.jit
def _route_topk(
    # pointers
    logits, bias, kv_index, ids, weights,
    # sizes
    E, scale,
    # strides
    logits_stride, ids_stride, weights_stride,
    # meta
    K: tl.constexpr, G: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr,
    GROUPS: tl.constexpr, MEMBERS: tl.constexpr, CHOICES: tl.constexpr, IS_SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_KV_INDEX: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    is_padding = False
    if HAS_KV_INDEX:
        is_padding = tl.load(kv_index + token) < 0
    chosen, result = choose_experts(
        logits + token * logits_stride, bias, E, scale,
        K, G, TOP_GROUPS, GROUP_TOP, GROUPS, MEMBERS, CHOICES, IS_SIGMOID, RENORMALISE, HAS_BIAS,
    )  # fmt: skip
    store_choice(
        ids + token * ids_stride, weights + token * weights_stride, chosen, result, is_padding, K, CHOICES
    )


def choice_constants(
    experts: int,
    num_chosen: int,
    scoring: str,
    renormalise: bool,
    bias: torch.Tensor | None,
    num_groups: int,
    top_groups: int,
    group_top: int,
) -> dict[str, int | bool]:
    """Return the constants of ``choose_experts``; raise ValueError where it cannot choose so many."""
    expect_range("experts", experts, experts, 1, MAX_EXPERTS)
    expect_range("num_chosen", num_chosen, num_chosen, 1, MAX_CHOSEN)
    return {
        "K": num_chosen,
        "G": num_groups,
        "TOP_GROUPS": top_groups,
        "GROUP_TOP": min(group_top, experts // num_groups),
        "GROUPS": power_of_two(num_groups),
        "MEMBERS": power_of_two(experts // num_groups),
        "CHOICES": power_of_two(num_chosen),
        "IS_SIGMOID": scoring == "sigmoid",
        "RENORMALISE": renormalise,
        "HAS_BIAS": bias is not None,
    }


def route_topk_into(
    logits: torch.Tensor,
    num_chosen: int,
    scoring: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    *,
    ids: torch.Tensor,
    weights: torch.Tensor,
    kv_index: torch.Tensor | None = None,
) -> None:
    """Choose the experts of each token: write ``ids`` and ``weights``.

    logits    [T, E] f32, bias [E] f32      E <= 65536, num_chosen <= 32
    ids       [T, K] i32, weights [T, K] f32
    kv_index  [T] i32   rows where it is negative are padding: ids -1, weights 0

    Safe under graph capture. Raises ValueError as the reference does.
    """
    check(logits, num_chosen, scoring, bias, num_groups, top_groups, group_top)
    tokens, experts = logits.shape
    constants = choice_constants(
        experts, num_chosen, scoring, renormalise, bias, num_groups, top_groups, group_top
    )
    if kv_index is not None:
        expect("kv_index", kv_index, "int32", (tokens,))
    expect("ids", ids, "int32", (tokens, num_chosen))
    expect("weights", weights, "float32", (tokens, num_chosen))
    if tokens == 0:
        return
    _route_topk[(tokens,)](
        logits, bias, kv_index, ids, weights, experts, float(scale),
        logits.stride(0), ids.stride(0), weights.stride(0),
        HAS_KV_INDEX=kv_index is not None, num_warps=1, **constants,
    )  # fmt: skip


def route_topk(
    logits: torch.Tensor,
    num_chosen: int,
    scoring: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    pool: object = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [T, K] i32 of each token's experts and their weights [T, K] f32; see route_topk_ref."""
    expect("logits", logits, "float32", ("T", "E"))
    ids = torch.empty((len(logits), num_chosen), dtype=torch.int32, device=logits.device)
    weights = torch.empty((len(logits), num_chosen), dtype=torch.float32, device=logits.device)
    route_topk_into(
        logits, num_chosen, scoring, renormalise, scale, bias, num_groups, top_groups, group_top,
        ids=ids, weights=weights,
    )  # fmt: skip
    return ids, weights
