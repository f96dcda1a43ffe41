"""The kernels of ``expert_ffn`` for a single token; without tensor cores, whose columns would be idle.

    gate_up   program (rows, choice)   h of some rows of one expert
    down      program (rows)           out of some rows: all chosen experts at once, so nobody adds later

EARLY: as in ``expert_products_triton``; down finds its experts and has its first weights before gate and up
have ended. A row of down as one long row of all experts took 2.5 to 14 us longer (H200).
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.expert_products_triton import gated, in_slot
from ftd.kernels.row_product_triton import is_plain, load_tile, plain_products, row_products


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
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """h = act(gate x, up x), BN rows of one expert. STACKED: up's rows follow the gate's in one weight."""
    # ---- program ids
    span, choice = tl.program_id(0), tl.program_id(1)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    outs = span * BN + tl.arange(0, BN)
    expert = tl.load(ids + choice)
    if expert < 0:
        # Where nothing is chosen at all, down looks at it
        tl.store(h + choice * h_stride + outs, tl.zeros((BN,), h.dtype.element_ty), mask=outs < F)
        return
    # ---- pointers; a row of the gate, a row of up, and so on
    slot = tl.load(slot_of + expert).to(tl.int64)
    i = tl.arange(0, 2 * BN)
    rows = tl.minimum(span * BN + i // 2, F - 1)
    if STACKED:
        planes = in_slot(gate, gate_slots, slot, PLANES)
        rows += i % 2 * F
    else:
        planes = chosen_planes(gate, up, gate_slots, up_slots, slot, (i % 2 == 1)[:, None], PLANES)
    start = x + tl.zeros((1, 1), tl.int32)
    # ---- loop
    if is_plain(FORMAT):
        sums = plain_products(start, planes, strides, rows, D, 2 * BN, BK, EVEN)
    else:
        tile = load_tile(planes, strides, rows, 0, D, FORMAT, 2 * BN, BK, EVEN)
        sums = row_products(tile, start, planes, strides, rows, 0, D, D, FORMAT, 2 * BN, BK, EVEN)
    gate_sums, up_sums = tl.split(tl.reshape(sums, (BN, 2)))
    # ---- store
    if BIAS:
        gate_sums += tl.load(gate_bias + slot * bias_slots[0] + outs, mask=outs < F, other=0.0)
        up_sums += tl.load(up_bias + slot * bias_slots[1] + outs, mask=outs < F, other=0.0)
    values = gated(gate_sums, up_sums, limit, ALPHA, CLAMPED)
    tl.store(h + choice * h_stride + outs, values.to(h.dtype.element_ty), mask=outs < F)
    if USES and span == 0:
        one = tl.full((), 1, tl.int64)
        tl.atomic_add(uses + expert, one, sem="relaxed")
        tl.atomic_add(uses + E, one, sem="relaxed")


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
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out = the weighted sum of what the experts' down gives, BN rows."""
    # ---- program ids
    span = tl.program_id(0)
    row = tl.minimum(span * BN + tl.arange(0, CHOICES * BN) % BN, D - 1)
    choice = tl.arange(0, CHOICES)
    expert = tl.load(ids + choice, mask=choice < K, other=-1)
    # ---- pointers; what is not chosen reads what is, and does not count
    is_known = expert >= 0
    weight = tl.load(weights + choice, mask=is_known, other=0.0)
    slot = tl.load(slot_of + tl.maximum(expert, 0)).to(tl.int64)
    slot = tl.where(is_known, slot, tl.max(tl.where(is_known, slot, 0), axis=0))
    choice = tl.where(is_known, choice, tl.max(tl.where(is_known, choice, 0), axis=0))
    row_slot = for_rows(slot, CHOICES, BN)
    planes = in_slot(down, slots, row_slot[:, None], PLANES)
    if not is_plain(FORMAT):
        tile = load_tile(planes, strides, row, 0, F, FORMAT, CHOICES * BN, BK, EVEN)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    start = h + for_rows(choice, CHOICES, BN)[:, None] * h_stride
    end = tl.where(tl.max(expert, axis=0) >= 0, F, 0)
    # ---- loop; where nothing is chosen, no more than the first tile
    if is_plain(FORMAT):
        sums = plain_products(start, planes, strides, row, end, CHOICES * BN, BK, EVEN)
    else:
        sums = row_products(tile, start, planes, strides, row, 0, end, F, FORMAT, CHOICES * BN, BK, EVEN)
    if BIAS:
        sums += tl.load(bias + row_slot * bias_slot + row)
    # ---- store
    sums = tl.reshape(sums, (CHOICES, BN))
    values = tl.sum(tl.where(is_known[:, None], sums * weight[:, None], 0.0), axis=0) * scale
    rows = span * BN + tl.arange(0, BN)
    if ADD:
        values += tl.load(out + rows, mask=rows < D, other=0.0).to(tl.float32)
    tl.store(out + rows, values.to(out.dtype.element_ty), mask=rows < D)
