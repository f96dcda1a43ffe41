"""The kernels of ``matmul`` and ``gated_matmul``: rows of floats times a weight of any FTW format.

Both multiply with the weight as the left operand, out^T = W x^T, so that the tensor cores' tall side is the
weight's rows and few tokens waste little. Decode reads each byte of the weight once and is bound by memory;
where the weight has too few rows to occupy the card, K is split, and the last program to finish a tile adds
the parts in their order: results do not depend on which one that is. Prefill is a blocked product that
dequantises its tiles in registers.

An RMS norm between two products of few tokens needs no kernel (``Scaling`` and ``Scaled`` of
``matmul_triton``): the first stores its sums, the sums times the norm's weights, and of each of its tiles
the sum of squares; the second multiplies what was scaled and divides by the norm at its end.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from ftd.kernels.row_product_triton import load_tile, row_products
from ftd.kernels.weight_tile_triton import fp8_scale, half_columns, half_tiles, plain_tile
from ftd.kernels.word_product_triton import load_order, word_products

# Tokens for which a tile's sums of squares have room.
SQUARES = tl.constexpr(16)


@triton.jit
def load_x(x, x_stride, tokens, columns, T, K, EVEN: tl.constexpr, WHOLE: tl.constexpr):
    """Return x^T [columns, tokens] as f32 or bf16; zeros outside. WHOLE: tokens are clamped, all exist."""
    pointers = x + tokens.to(tl.int64)[None, :] * x_stride + columns[:, None]
    if WHOLE:
        if EVEN:
            return tl.load(pointers)
        return tl.load(pointers, mask=columns[:, None] < K, other=0.0)
    inside = (tokens < T)[None, :]
    if not EVEN:
        inside = inside & (columns < K)[:, None]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def times_norm(values, norm_weight, columns, K, EVEN: tl.constexpr):
    """Return values [columns, tokens] f32 times the norm's weights of the columns."""
    if EVEN:
        return values * tl.load(norm_weight + columns)[:, None]
    return values * tl.load(norm_weight + columns, mask=columns < K, other=0.0)[:, None]


@triton.jit
def products(
    x, planes, norm_weight,
    tokens, rows, begin, end, T, K,
    x_stride, strides,
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, NORM: tl.constexpr, DTYPE: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Return W x^T [BN, BT] over columns begin to end, and with NORM the sums of squares [BT] of x."""
    PRECISION: tl.constexpr = "ieee" if tl.float32 == DTYPE else "tf32"
    sums = tl.zeros((BN, BT), tl.float32)
    squares = tl.zeros((BT,), tl.float32)
    for first in range(begin, end, BK):
        if PLAIN:
            columns = first + tl.arange(0, BK)
            values = load_x(x, x_stride, tokens, columns, T, K, EVEN, WHOLE)
            if NORM:
                values = values.to(tl.float32)
                squares += tl.sum(values * values, axis=0)
                values = times_norm(values, norm_weight, columns, K, EVEN)
            tile = plain_tile(planes, strides, rows, columns, first, K, FORMAT, BN, BK, EVEN, DTYPE)
            if FORMAT == "fp8_b128":
                part = tl.dot(tile, values.to(DTYPE), input_precision=PRECISION)
                sums += part * fp8_scale(planes, strides, rows, first)[:, None]
            else:
                sums = tl.dot(tile, values.to(DTYPE), sums, input_precision=PRECISION)
        else:
            low_columns, high_columns = half_columns(first, K, BK, TAIL)
            low_x = load_x(x, x_stride, tokens, low_columns, T, K, EVEN, WHOLE)
            high_x = load_x(x, x_stride, tokens, high_columns, T, K, EVEN, WHOLE)
            if NORM:
                low_x, high_x = low_x.to(tl.float32), high_x.to(tl.float32)
                squares += tl.sum(low_x * low_x + high_x * high_x, axis=0)
                low_x = times_norm(low_x, norm_weight, low_columns, K, EVEN)
                high_x = times_norm(high_x, norm_weight, high_columns, K, EVEN)
            low, high = half_tiles(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, TAIL, DTYPE)
            sums = tl.dot(low, low_x.to(DTYPE), sums, input_precision=PRECISION)
            sums = tl.dot(high, high_x.to(DTYPE), sums, input_precision=PRECISION)
    return sums, squares


@triton.jit
def activate(gate, ACTIVATION: tl.constexpr):
    """Return silu(gate) or the tanh form of gelu(gate)."""
    if ACTIVATION == "silu":  # noqa: SIM108  Triton compiles no long conditional expressions
        slope = gate
    else:
        # tanh(u) = 2 sigmoid(2u) - 1, so 0.5 (1 + tanh(u)) is sigmoid(2u).
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(slope)


@triton.jit
def tile_rows(tile, i, N, BN: tl.constexpr, GATED: tl.constexpr):
    """Return the rows of the weight that rows i [BN] of a tile are, clamped.

    GATED: rows of the gate and of up alternate; N columns of out come from 2N rows.
    """
    if GATED:
        column = tl.minimum(tile * (BN // 2) + i // 2, N - 1)
        return column + i % 2 * N
    return tl.minimum(tile * BN + i, N - 1)


@triton.jit
def finish(
    sums, out, bias, scaled, scale, squares,
    tile, tokens, T, N, out_stride, scaled_stride,
    BN: tl.constexpr, BT: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Store a tile of sums [BN, BT] as columns of out: plus bias, gated, or added to what is there.

    SCALED: store them times ``scale`` [N] as columns of ``scaled``, and their squares' sum by token too
    """
    if ACTIVATION != "":
        pairs = tl.permute(tl.reshape(sums, (BN // 2, 2, BT)), (0, 2, 1))
        gate, up = tl.split(pairs)
        values = activate(gate, ACTIVATION) * up
        columns = tile * (BN // 2) + tl.arange(0, BN // 2)
    else:
        values = sums
        columns = tile * BN + tl.arange(0, BN)
    if BIAS:
        values += tl.load(bias + columns, mask=columns < N, other=0.0)[:, None]
    pointers = out + tokens.to(tl.int64)[None, :] * out_stride + columns[:, None]
    inside = (columns < N)[:, None] & (tokens < T)[None, :]
    if ADD:
        values += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    tl.store(pointers, values, mask=inside)
    if SCALED:
        factors = tl.load(scale + columns, mask=columns < N, other=0.0)
        places = scaled + tokens.to(tl.int64)[None, :] * scaled_stride + columns[:, None]
        tl.store(places, values * factors[:, None], mask=inside)
        total = tl.sum(tl.where(inside, values * values, 0.0), axis=0)
        tl.store(squares + tile * SQUARES + tokens, total, mask=tokens < SQUARES)


@triton.jit
def load_squares(squares, tokens, count, TILES: tl.constexpr):
    """Return the sums of squares [TILES, BT] of ``count`` tiles of the product that wrote x; zeros behind."""
    tile = tl.arange(0, TILES)
    inside = (tile < count)[:, None] & (tokens < SQUARES)[None, :]
    return tl.load(squares + tile[:, None] * SQUARES + tokens[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["T", "num_squares"])
def decode_kernel(
    # pointers
    x, planes, bias, norm_weight, out, partial, counters, scaled, squares,
    # sizes
    T, N, K, eps, num_squares,
    # strides
    x_stride, strides, out_stride, scaled_stride,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, DTYPE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BT: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr, STAGES: tl.constexpr,
    WORDS: tl.constexpr, TRIGGER: tl.constexpr, SCALED: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One part of K of one tile of BN rows, for at most BT tokens; the last part adds all and stores.

    WORDS: the warps of a program whose weight is read by ``word_products``, or 0
    NORM: x is normalised, its squares are added up on the way; not of one token
    TILES: x was scaled by the product that wrote it, whose sums of squares, at most so many, divide the sums
    SCALED: see ``finish``
    TRIGGER: the kernel behind this one may start before it ends (``early_triton``); it never does itself
    """
    # ---- program ids
    tile, part, num_parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    per_part = tl.cdiv(tl.cdiv(K, BK), num_parts) * BK
    begin = part * per_part
    end = tl.minimum(begin + per_part, K)
    tokens = tl.arange(0, BT)
    order = load_order(BN, WORDS) if WORDS else tl.arange(0, BN)
    rows = tile_rows(tile, order, N, BN, ACTIVATION != "")
    if TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()
    if TILES:
        before = load_squares(squares, tokens, num_squares, TILES)
        if BT > 1:  # of so many tokens too much to hold
            before = tl.sum(before, axis=0)[None, :]
    # ---- loop
    if BT == 1:
        tl.static_assert(not NORM, "row_products adds no squares up")
        start = x + tl.zeros((1, 1), tl.int32)
        first = load_tile(planes, strides, rows, begin, K, FORMAT, BN, BK, EVEN)
        sums = row_products(first, start, planes, strides, rows, begin, end, K, FORMAT, BN, BK, EVEN)[:, None]
    elif WORDS:
        sums, own_squares = word_products(
            x, planes, norm_weight, tokens, rows, begin, end, T, K, x_stride, strides,
            FORMAT, NORM, BN, BK, BT, WORDS, EVEN, STAGES,
        )  # fmt: skip
    else:
        sums, own_squares = products(
            x, planes, norm_weight, tokens, rows, begin, end, T, K, x_stride, strides,
            FORMAT, PLAIN, NORM, DTYPE, BN, BK, BT, EVEN, False, TAIL,
        )  # fmt: skip
    # ---- parts
    if SPLIT:
        # Each part stores BN rows of BT sums, and behind them BT sums of squares.
        PART: tl.constexpr = (BN + 1) * BT
        place = tl.arange(0, BN)[:, None] * BT + tokens[None, :]
        parts = partial + tile.to(tl.int64) * (num_parts * PART)
        tl.store(parts + part * PART + place, sums)
        if NORM:
            tl.store(parts + part * PART + BN * BT + tokens, own_squares)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            sums = tl.zeros((BN, BT), tl.float32)
            own_squares = tl.zeros((BT,), tl.float32)
            for i in range(num_parts):
                # Other programs wrote these: not from the first cache, which knows nothing of them.
                sums += tl.load(parts + i * PART + place, cache_modifier=".cg")
                if NORM:
                    own_squares += tl.load(parts + i * PART + BN * BT + tokens, cache_modifier=".cg")
            if NORM:
                sums *= tl.rsqrt(own_squares / K + eps)[None, :]
            if TILES:
                sums *= tl.rsqrt(tl.sum(before, axis=0) / K + eps)[None, :]
            finish(
                sums, out, bias, scaled, norm_weight, squares, tile, tokens, T, N, out_stride, scaled_stride,
                BN, BT, ACTIVATION, BIAS, ADD, SCALED,
            )  # fmt: skip
            tl.store(counters + tile, 0)
    else:
        if NORM:
            sums *= tl.rsqrt(own_squares / K + eps)[None, :]
        if TILES:
            sums *= tl.rsqrt(tl.sum(before, axis=0) / K + eps)[None, :]
        finish(
            sums, out, bias, scaled, norm_weight, squares, tile, tokens, T, N, out_stride, scaled_stride,
            BN, BT, ACTIVATION, BIAS, ADD, SCALED,
        )  # fmt: skip


@triton.jit(do_not_specialize=["T"])
def prefill_kernel(
    # pointers
    x, planes, bias, out,
    # sizes
    T, N, K,
    # strides
    x_stride, strides, out_stride,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr,
    ADD: tl.constexpr, DTYPE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    GROUP: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """One tile of BN rows of the weight by BT tokens; GROUP tiles of tokens share weights in the L2."""
    # ---- program ids
    COLUMNS: tl.constexpr = BN // 2 if ACTIVATION != "" else BN
    program = tl.program_id(0)
    num_tiles, num_spans = tl.cdiv(N, COLUMNS), tl.cdiv(T, BT)
    group = program // (GROUP * num_tiles)
    size = tl.minimum(num_spans - group * GROUP, GROUP)
    span = group * GROUP + program % (GROUP * num_tiles) % size
    tile = program % (GROUP * num_tiles) // size
    tokens = span * BT + tl.arange(0, BT)
    rows = tile_rows(tile, tl.arange(0, BN), N, BN, ACTIVATION != "")
    # ---- loop
    sums, _ = products(
        x, planes, x, tl.minimum(tokens, T - 1), rows, 0, K, T, K, x_stride, strides,
        FORMAT, PLAIN, False, DTYPE, BN, BK, BT, EVEN, True, TAIL,
    )  # fmt: skip
    finish(
        sums, out, bias, out, out, out, tile, tokens, T, N, out_stride, 0,
        BN, BT, ACTIVATION, BIAS, ADD, False,
    )  # fmt: skip
