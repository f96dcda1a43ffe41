"""The kernels of ``expert_ffn``: gate, up and activation; down; the weighted sum.

Weights are the left operand (out^T = W x^T), the tokens of one expert the columns of the right one. Pairs are
grouped as ``expert_groups_triton`` says; all are named p = token * K + choice, in ``h`` and in ``parts`` too.

EARLY: decode's kernels start while the one before them ends, and wait for it where they need what it wrote.
Each starts its successor after its own wait, so what two kernels before wrote can be read without waiting.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.expert_groups_triton import decode_group, prefill_group
from ftd.kernels.weight_tile_triton import fp8_scale, half_columns, half_tiles, plain_tile


@triton.jit
def in_slot(planes, strides, slot, NUM: tl.constexpr):
    """Return the planes of a weight in ``slot``."""
    placed = (planes[0] + slot * strides[0],)
    for i in tl.static_range(1, NUM):
        placed = placed + (planes[i] + slot * strides[i],)  # type: ignore[assignment]  # noqa: RUF005
    return placed


@triton.jit
def load_columns(x, x_stride, places, columns, K, EVEN: tl.constexpr, DTYPE: tl.constexpr):
    """Return x^T [columns, places]; zeros for places below 0 and columns behind K."""
    inside = (places >= 0)[None, :]
    if not EVEN:
        inside = inside & (columns < K)[:, None]
    pointers = x + places.to(tl.int64)[None, :] * x_stride + columns[:, None]
    return tl.load(pointers, mask=inside, other=0.0).to(DTYPE)


@triton.jit
def add_product(
    sums, x_all, x_low, x_high, planes, strides, rows, columns, first, K,
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, DTYPE: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Return sums + W x^T of the BK columns from ``first``."""
    PRECISION: tl.constexpr = "ieee" if tl.float32 == DTYPE else "tf32"
    if PLAIN:
        tile = plain_tile(planes, strides, rows, columns, first, K, FORMAT, BN, BK, EVEN, DTYPE)
        if FORMAT == "fp8_b128":
            part = tl.dot(tile, x_all, input_precision=PRECISION)
            return sums + part * fp8_scale(planes, strides, rows, first)[:, None]
        return tl.dot(tile, x_all, sums, input_precision=PRECISION)
    else:
        low, high = half_tiles(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, TAIL, DTYPE)
        sums = tl.dot(low, x_low, sums, input_precision=PRECISION)
        return tl.dot(high, x_high, sums, input_precision=PRECISION)


@triton.jit
def load_bias(bias, stride, slot, rows, inside):
    """Return the biases of ``rows`` as a column."""
    return tl.load(bias + slot * stride + rows, mask=inside, other=0.0)[:, None]


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)); exp overflows for no x."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, decay) / (1.0 + decay)


@triton.jit
def gated(gate, up, limit, ALPHA: tl.constexpr, CLAMPED: tl.constexpr):
    """Return what of gate and up goes to down, as the reference says."""
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        return gate * sigmoid(gate * ALPHA) * up
    return gate * sigmoid(gate) * up


@triton.jit(do_not_specialize=["T", "UP"])
def gate_up_kernel(
    # pointers
    x, gate, up, gate_bias, up_bias, slot_of, ids, order, starts, ends, uses, h,
    # sizes
    T, K, E, D, F, UP, limit,
    # strides
    x_stride, ids_stride, h_stride,
    gate_strides, up_strides, gate_slots, up_slots, bias_slots,
    # meta
    GATE: tl.constexpr, GATE_PLAIN: tl.constexpr, GATE_PLANES: tl.constexpr, GATE_TAIL: tl.constexpr,
    UP_FORMAT: tl.constexpr, UP_PLAIN: tl.constexpr, UP_PLANES: tl.constexpr, UP_TAIL: tl.constexpr,
    GROUPED: tl.constexpr, BY_EXPERT: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr,
    CLAMPED: tl.constexpr, ALPHA: tl.constexpr, BIAS: tl.constexpr, USES: tl.constexpr,
    EARLY: tl.constexpr,
    DTYPE: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """h = act(gate x, up x), BN rows of one expert for one group of its pairs; UP: rows before up's first."""
    # ---- program ids
    tile, group = tl.program_id(0), tl.program_id(1)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if GROUPED:
        expert, has_work, pairs = prefill_group(group, order, starts, ends, E, BT, EXPERTS)
    else:
        expert, has_work, pairs = decode_group(ids, group, T, K, ids_stride, BY_EXPERT, BT, CHOICES)
    if not has_work:
        return
    if USES and tile == 0:
        tl.store(uses + expert, tl.load(uses + expert) + tl.sum((pairs >= 0).to(tl.int64), axis=0))
        one: tl.constexpr = 1
        tl.atomic_add(uses + E, tl.full((), one, tl.int64), sem="relaxed")
    # ---- pointers
    slot = tl.load(slot_of + expert).to(tl.int64)
    gate_planes = in_slot(gate, gate_slots, slot, GATE_PLANES)
    up_planes = in_slot(up, up_slots, slot, UP_PLANES)
    rows = tile * BN + tl.arange(0, BN)
    known = tl.minimum(rows, F - 1)
    tokens = tl.where(pairs >= 0, pairs // K, -1)
    # ---- loop
    gate_sums = tl.zeros((BN, BT), tl.float32)
    up_sums = tl.zeros((BN, BT), tl.float32)
    for first in range(0, D, BK):
        columns = first + tl.arange(0, BK)
        low, high = half_columns(first, D, BK, GATE_TAIL)
        if GATE_PLAIN and UP_PLAIN:
            x_all = load_columns(x, x_stride, tokens, columns, D, EVEN, DTYPE)
            x_low, x_high = x_all, x_all
        else:
            x_low = load_columns(x, x_stride, tokens, low, D, EVEN, DTYPE)
            x_high = load_columns(x, x_stride, tokens, high, D, EVEN, DTYPE)
            x_all = x_low
            if GATE_PLAIN or UP_PLAIN:
                x_all = load_columns(x, x_stride, tokens, columns, D, EVEN, DTYPE)
        gate_sums = add_product(
            gate_sums, x_all, x_low, x_high, gate_planes, gate_strides, known, columns, first, D,
            GATE, GATE_PLAIN, DTYPE, BN, BK, EVEN, GATE_TAIL,
        )  # fmt: skip
        up_sums = add_product(
            up_sums, x_all, x_low, x_high, up_planes, up_strides, known + UP, columns, first, D,
            UP_FORMAT, UP_PLAIN, DTYPE, BN, BK, EVEN, UP_TAIL,
        )  # fmt: skip
    # ---- store
    if BIAS:
        gate_sums += load_bias(gate_bias, bias_slots[0], slot, rows, rows < F)
        up_sums += load_bias(up_bias, bias_slots[1], slot, rows, rows < F)
    values = gated(gate_sums, up_sums, limit, ALPHA, CLAMPED)
    pointers = h + pairs.to(tl.int64)[None, :] * h_stride + rows[:, None]
    tl.store(pointers, values, mask=(rows < F)[:, None] & (pairs >= 0)[None, :])


@triton.jit
def add_parts(
    out, parts, ids, weights, tokens, columns, inside, K, D, out_stride, ids_stride, weights_stride, scale,
    CHOSEN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Store the weighted sum of parts of ``tokens`` in ``columns`` of out, in the order of the choices."""
    sums = tl.zeros((tokens.shape[0], columns.shape[0]), tl.float32)
    is_token = tokens >= 0
    for choice in tl.static_range(CHOSEN):
        expert = tl.load(ids + tokens * ids_stride + choice, mask=is_token, other=-1)
        weight = tl.load(weights + tokens * weights_stride + choice, mask=expert >= 0, other=0.0)
        places = (tokens * K + choice).to(tl.int64)[:, None] * D + columns[None, :]
        # Other programs wrote these: not from the first cache, which knows nothing of them.
        part = tl.load(parts + places, mask=inside & (expert >= 0)[:, None], other=0.0, cache_modifier=".cg")
        sums += weight[:, None] * part.to(tl.float32)
    sums *= scale
    pointers = out + tokens.to(tl.int64)[:, None] * out_stride + columns[None, :]
    if ADD:
        sums += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    tl.store(pointers, sums, mask=inside)


@triton.jit(do_not_specialize=["T"])
def down_kernel(
    # pointers
    h, down, bias, slot_of, ids, weights, order, starts, ends, parts, arrivals, out,
    # sizes
    T, K, E, D, F, scale,
    # strides
    h_stride, ids_stride, weights_stride, out_stride, down_strides, down_slots, bias_slot,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, PLANES: tl.constexpr, TAIL: tl.constexpr,
    GROUPED: tl.constexpr, BY_EXPERT: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    DTYPE: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """parts = down h of BN rows of one expert for one group of its pairs; decode's last program adds them."""
    # ---- program ids
    tile, group = tl.program_id(0), tl.program_id(1)
    if GROUPED:
        expert, has_work, pairs = prefill_group(group, order, starts, ends, E, BT, EXPERTS)
    else:
        expert, has_work, pairs = decode_group(ids, group, T, K, ids_stride, BY_EXPERT, BT, CHOICES)
    rows = tile * BN + tl.arange(0, BN)
    if has_work:
        # ---- pointers
        slot = tl.load(slot_of + expert).to(tl.int64)
        planes = in_slot(down, down_slots, slot, PLANES)
        known = tl.minimum(rows, D - 1)
        # ---- loop
        if EARLY:
            gdc_wait()
        sums = tl.zeros((BN, BT), tl.float32)
        for first in range(0, F, BK):
            columns = first + tl.arange(0, BK)
            if PLAIN:
                x_all = load_columns(h, h_stride, pairs, columns, F, EVEN, DTYPE)
                x_low, x_high = x_all, x_all
            else:
                low, high = half_columns(first, F, BK, TAIL)
                x_low = load_columns(h, h_stride, pairs, low, F, EVEN, DTYPE)
                x_high = load_columns(h, h_stride, pairs, high, F, EVEN, DTYPE)
                x_all = x_low
            sums = add_product(
                sums, x_all, x_low, x_high, planes, down_strides, known, columns, first, F,
                FORMAT, PLAIN, DTYPE, BN, BK, EVEN, TAIL,
            )  # fmt: skip
        # ---- store
        if BIAS:
            sums += load_bias(bias, bias_slot, slot, rows, rows < D)
        pointers = parts + pairs.to(tl.int64)[None, :] * D + rows[:, None]
        tl.store(pointers, sums, mask=(rows < D)[:, None] & (pairs >= 0)[None, :])
    if not GROUPED:
        # ---- the last program of this tile
        if EARLY and not has_work:
            gdc_wait()
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == tl.num_programs(1) - 1:
            tokens = tl.arange(0, BT)
            tokens = tl.where(tokens < T, tokens, -1)
            inside = (tokens >= 0)[:, None] & (rows < D)[None, :]
            add_parts(
                out, parts, ids, weights, tokens, rows, inside, K, D,
                out_stride, ids_stride, weights_stride, scale, CHOSEN, ADD,
            )  # fmt: skip
            tl.store(arrivals + tile, 0)


@triton.jit
def combine_kernel(
    # pointers
    parts, ids, weights, out,
    # sizes
    K, D, scale,
    # strides
    ids_stride, weights_stride, out_stride,
    # meta
    CHOSEN: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the weighted sum of one token's parts, BLOCK columns of it."""
    tokens = tl.program_id(0) + tl.arange(0, 1)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    add_parts(
        out, parts, ids, weights, tokens, columns, (columns < D)[None, :], K, D,
        out_stride, ids_stride, weights_stride, scale, CHOSEN, ADD,
    )  # fmt: skip
