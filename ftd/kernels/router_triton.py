"""A router on a GPU: norm, product and choice of experts of few tokens, in one launch.

    program (experts, token)   logits of a few experts from x and its sum of squares; a part of the norm
      the last program of a token to finish chooses its experts

Logits are sums of float32 products of exact weights. It is rms_norm, matmul and route_topk of the references
in that order.

Where experts are looked ahead to (``look_ahead_triton``) as many programs more multiply the same norm by the
next layer's weight, and choose what that is expected to choose.

Slower on an H200 (30b-a3b): the choice by pairs of 32-bit reductions, by 1.4 us; that in one warp, by 0.8.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.early_triton import early
from ftd.kernels.route_topk_ref import check
from ftd.kernels.route_topk_triton import choice_constants, choose_experts, store_choice
from ftd.kernels.shapes import ceil_div, expect, expect_range, power_of_two

# Each token reads the weight again (from the L2).
MAX_TOKENS = 16
FORMATS = frozenset({"f32", "f16", "bf16"})
# Columns that a program holds at once, its warps, and programs that read the weight at the memory's rate.
TILE_COLUMNS = 2048
WARPS = 4
WANTED_PROGRAMS = 64


@triton.jit
def _router_kernel(
    # pointers
    x, norm_weight, weight, weight_bias, bias, kv_index, normed, logits, arrivals, ids, weights,
    next_weight, next_weight_bias, next_bias, next_logits, next_arrivals, next_ids, next_weights,
    # sizes
    E, D, eps, scale,
    # strides
    x_stride, weight_stride, normed_stride, logits_stride, ids_stride, weights_stride,
    # meta
    HAS_WEIGHT_BIAS: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, SPAN: tl.constexpr,
    SPAN_PADDED: tl.constexpr, LOOKS: tl.constexpr, EARLY: tl.constexpr,
    K: tl.constexpr, G: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr,
    GROUPS: tl.constexpr, MEMBERS: tl.constexpr, CHOICES: tl.constexpr, IS_SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Logits of BE experts of one token, and SPAN columns of its norm; the last program chooses."""
    # ---- program ids
    program, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    experts = program * BE + tl.arange(0, BE)
    known = tl.minimum(experts, E - 1).to(tl.int64)
    columns = tl.arange(0, BK)
    is_next = False
    if LOOKS:
        is_next = tl.program_id(2) == 1
        if is_next:
            weight, logits, arrivals = next_weight, next_logits, next_arrivals
            ids, weights = next_ids, next_weights
            if HAS_WEIGHT_BIAS:
                weight_bias = next_weight_bias
            if HAS_BIAS:
                bias = next_bias
    # ---- pointers; the first tile needs nothing of the kernel before
    rows = weight + known[:, None] * weight_stride
    x += token * x_stride
    tile = tl.load(rows + columns[None, :], mask=(columns < D)[None, :], other=0.0)
    gain = tl.load(norm_weight + columns, mask=columns < D, other=0.0)
    is_padding = tl.load(kv_index + token) < 0
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    # ---- loop
    sums = tl.zeros((BE, BK), tl.float32)
    squares = tl.zeros((BK,), tl.float32)
    for first in range(0, D, BK):
        column = first + columns
        values = tl.load(x + column, mask=column < D, other=0.0).to(tl.float32)
        squares += values * values
        sums += tile.to(tl.float32) * (values * gain)[None, :]
        column += BK
        tile = tl.load(rows + column[None, :], mask=(column < D)[None, :], other=0.0)
        gain = tl.load(norm_weight + column, mask=column < D, other=0.0)
    factor = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / D + eps)
    # ---- store
    values = tl.sum(sums, axis=1) * factor
    if HAS_WEIGHT_BIAS:
        values += tl.load(weight_bias + known)
    row = logits + token * logits_stride
    tl.store(row + experts, values, mask=experts < E)
    part = tl.arange(0, SPAN_PADDED)
    column = program * SPAN + part
    inside = (part < SPAN) & (column < D) & (not is_next)
    values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    values *= factor * tl.load(norm_weight + column, mask=inside, other=0.0)
    tl.store(normed + token * normed_stride + column, values.to(normed.dtype.element_ty), mask=inside)
    # ---- the last program of this token
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals + token, 1, sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:
        chosen, result = choose_experts(
            row, bias, E, scale,
            K, G, TOP_GROUPS, GROUP_TOP, GROUPS, MEMBERS, CHOICES, IS_SIGMOID, RENORMALISE, HAS_BIAS,
        )  # fmt: skip
        store_choice(
            ids + token * ids_stride, weights + token * weights_stride,
            chosen, result, is_padding, K, CHOICES,
        )  # fmt: skip
        tl.store(arrivals + token, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The router of the next layer with experts, and where its choice goes: as ``router`` has its own.

    It has the same shapes, format and options, and biases where the other has them.
    """

    weight: DeviceMatrix
    weight_bias: torch.Tensor | None
    bias: torch.Tensor | None
    logits: torch.Tensor
    arrivals: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def pointers(self, tokens: int) -> tuple[torch.Tensor | None, ...]:
        """Return what the kernel takes of it, for up to ``tokens``."""
        expect_range("tokens", tokens, tokens, 0, len(self.ids))
        plane = self.weight.planes[0][0]
        return plane, self.weight_bias, self.bias, self.logits, self.arrivals, self.ids, self.weights


def _check(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: DeviceMatrix,
    weight_bias: torch.Tensor | None,
    num_chosen: int,
    rows: dict[str, torch.Tensor],
) -> None:
    """Raise ValueError unless the arguments of ``router`` fit each other; ``rows`` have one a token."""
    experts, width = weight.shape
    expect("x", x, "float32 bfloat16", ("T", width))
    tokens = x.shape[0]
    expect_range("tokens", tokens, tokens, 0, MAX_TOKENS)
    if weight.format not in FORMATS:
        raise ValueError(f"weight must be one of {' '.join(sorted(FORMATS))}, got {weight.format}")
    expect("norm", norm_weight, "float32", (width,))
    if weight_bias is not None:
        expect("weight_bias", weight_bias, "float32", (experts,))
    for name, types, shape in (
        ("kv_index", "int32", (tokens,)),
        ("normed", "float32 bfloat16", (tokens, width)),
        ("logits", "float32", (tokens, experts)),
        ("arrivals", "int32", (tokens,)),
        ("ids", "int32", (tokens, num_chosen)),
        ("weights", "float32", (tokens, num_chosen)),
    ):
        expect(name, rows[name], types, shape)


def router(
    x: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    weight: DeviceMatrix,
    weight_bias: torch.Tensor | None,
    num_chosen: int,
    scoring: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    *,
    kv_index: torch.Tensor,
    normed: torch.Tensor,
    logits: torch.Tensor,
    arrivals: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    expected: Expected | None = None,
) -> None:
    """Normalise ``x``, multiply by the router's weight and choose each token's experts.

    x            [T, D] f32 or bf16    T at most MAX_TOKENS
    norm         (weight [D] f32, eps)
    weight       [E, D] of FORMATS, weight_bias [E] f32: of the product
    num_chosen … group_top             as ``route_topk`` has them
    kv_index     [T] i32               rows where it is negative are padding: ids -1, weights 0
    normed       [T, D] f32 or bf16    written: the norm
    logits       [T, E] f32            written
    arrivals     [T] i32               zeros before and after
    ids, weights [T, K] i32 and f32    written
    expected                           written too, if given

    Safe under graph capture. Raises ValueError if a shape or type does not fit.
    """
    check(logits, num_chosen, scoring, bias, num_groups, top_groups, group_top)
    looks = (None,) * 7 if expected is None else expected.pointers(x.shape[0])
    rows = {
        "kv_index": kv_index, "normed": normed, "logits": logits, "arrivals": arrivals, "ids": ids,
        "weights": weights,
    }  # fmt: skip
    _check(x, norm[0], weight, weight_bias, num_chosen, rows)
    (tokens, width), experts = x.shape, weight.shape[0]
    if not tokens:
        return
    each = max(1, power_of_two(ceil_div(experts, WANTED_PROGRAMS)))
    programs = ceil_div(experts, each)
    span, plane = ceil_div(width, programs), weight.planes[0][0]
    _router_kernel[(programs, tokens, 1 if expected is None else 2)](
        x, norm[0], plane, weight_bias, bias, kv_index, normed, logits, arrivals, ids, weights, *looks,
        experts, width, norm[1], float(scale),
        x.stride(0), plane.stride(0), normed.stride(0), logits.stride(0), ids.stride(0), weights.stride(0),
        HAS_WEIGHT_BIAS=weight_bias is not None, BE=each,
        BK=min(power_of_two(width), TILE_COLUMNS // max(1, each // 4)),
        SPAN=span, SPAN_PADDED=power_of_two(span), LOOKS=expected is not None, num_warps=WARPS, **early(x),
        **choice_constants(
            experts, num_chosen, scoring, renormalise, bias, num_groups, top_groups, group_top
        ),
    )  # fmt: skip
