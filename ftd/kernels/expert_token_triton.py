"""The kernels of ``expert_ffn`` for a single token; without tensor cores, whose columns would be idle.

    gate_up   program (rows, choice)   h of some rows of one expert
    down      program (rows)           out of some rows: all chosen experts at once, so nobody adds later

EARLY: as in ``expert_products_triton``; down finds its experts before gate and up have ended. Codes are read
by programs of one warp: there words, scales and floats move between threads without waiting for other warps.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.expert_products_triton import gated, in_slot
from ftd.kernels.row_product_triton import row_products


@triton.jit
def chosen_planes(gate, up, gate_slots, up_slots, slot, is_up, NUM: tl.constexpr):
    """Return planes [rows, 1] of gate, and of up where ``is_up``."""
    placed = (tl.where(is_up, up[0] + slot * up_slots[0], gate[0] + slot * gate_slots[0]),)
    for i in tl.static_range(1, NUM):
        one = tl.where(is_up, up[i] + slot * up_slots[i], gate[i] + slot * gate_slots[i])
        placed = placed + (one,)  # type: ignore[assignment]  # noqa: RUF005
    return placed


@triton.jit
def for_rows(values, CHOICES: tl.constexpr, BN: tl.constexpr):
    """Return ``values`` [CHOICES] for BN rows of each: [CHOICES * BN]."""
    return tl.reshape(tl.broadcast_to(values[:, None], (CHOICES, BN)), (CHOICES * BN,))


@triton.jit
def gate_up_token_kernel(
    # pointers
    x, gate, up, gate_bias, up_bias, slot_of, ids, uses, h,
    # sizes
    E, D, F, limit,
    # strides
    h_stride, strides, gate_slots, up_slots, bias_slots,
    # meta
    FORMAT: tl.constexpr, PLANES: tl.constexpr, STACKED: tl.constexpr, CLAMPED: tl.constexpr,
    ALPHA: tl.constexpr, BIAS: tl.constexpr, USES: tl.constexpr, EARLY: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h = act(gate x, up x), BN rows of one expert. STACKED: up's rows follow the gate's in one weight."""
    # ---- program ids
    tile, choice = tl.program_id(0), tl.program_id(1)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(ids + choice)
    if expert < 0:
        return
    if USES and tile == 0:
        tl.store(uses + expert, tl.load(uses + expert) + 1)
        one: tl.constexpr = 1
        tl.atomic_add(uses + E, tl.full((), one, tl.int64), sem="relaxed")
    # ---- pointers; a row of the gate, a row of up, and so on
    slot = tl.load(slot_of + expert).to(tl.int64)
    i = tl.arange(0, 2 * BN)
    rows = tl.minimum(tile * BN + i // 2, F - 1)
    if STACKED:
        planes = in_slot(gate, gate_slots, slot, PLANES)
        rows += i % 2 * F
    else:
        planes = chosen_planes(gate, up, gate_slots, up_slots, slot, (i % 2 == 1)[:, None], PLANES)
    start = x + tl.zeros((1, 1), tl.int32)
    # ---- loop
    sums = row_products(start, planes, strides, rows, D, FORMAT, 2 * BN, BK, EVEN, STAGES)
    gate_sums, up_sums = tl.split(tl.reshape(sums, (BN, 2)))
    # ---- store
    rows = tile * BN + tl.arange(0, BN)
    if BIAS:
        gate_sums += tl.load(gate_bias + slot * bias_slots[0] + rows, mask=rows < F, other=0.0)
        up_sums += tl.load(up_bias + slot * bias_slots[1] + rows, mask=rows < F, other=0.0)
    values = gated(gate_sums, up_sums, limit, ALPHA, CLAMPED)
    tl.store(h + choice * h_stride + rows, values.to(h.dtype.element_ty), mask=rows < F)


@triton.jit
def down_token_kernel(
    # pointers
    h, down, bias, slot_of, ids, weights, out,
    # sizes
    K, D, F, scale,
    # strides
    h_stride, strides, slots, bias_slot,
    # meta
    FORMAT: tl.constexpr, PLANES: tl.constexpr, CHOICES: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    EARLY: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out = the weighted sum of what the experts' down gives, BN rows."""
    # ---- program ids
    tile = tl.program_id(0)
    row = tl.minimum(tile * BN + tl.arange(0, CHOICES * BN) % BN, D - 1)
    # ---- pointers; what is not chosen reads what is, and does not count
    choice = tl.arange(0, CHOICES)
    expert = tl.load(ids + choice, mask=choice < K, other=-1)
    is_known = expert >= 0
    weight = tl.load(weights + choice, mask=is_known, other=0.0)
    slot = tl.load(slot_of + tl.maximum(expert, 0)).to(tl.int64)
    slot = tl.where(is_known, slot, tl.max(tl.where(is_known, slot, 0), axis=0))
    choice = tl.where(is_known, choice, tl.max(tl.where(is_known, choice, 0), axis=0))
    row_slot = for_rows(slot, CHOICES, BN)
    planes = in_slot(down, slots, row_slot[:, None], PLANES)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    # ---- loop
    start = h + for_rows(choice, CHOICES, BN)[:, None] * h_stride
    columns = tl.where(tl.max(expert, axis=0) >= 0, F, 0)
    sums = row_products(start, planes, strides, row, columns, FORMAT, CHOICES * BN, BK, EVEN, STAGES)
    if BIAS:
        sums += tl.load(bias + row_slot * bias_slot + row)
    # ---- store
    sums = tl.reshape(sums, (CHOICES, BN))
    values = tl.sum(tl.where(is_known[:, None], sums * weight[:, None], 0.0), axis=0) * scale
    rows = tile * BN + tl.arange(0, BN)
    if ADD:
        values += tl.load(out + rows, mask=rows < D, other=0.0).to(tl.float32)
    tl.store(out + rows, values.to(out.dtype.element_ty), mask=rows < D)
