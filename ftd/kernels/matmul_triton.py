"""matmul on a GPU: rows of floats times a weight of any FTW format, dequantised in registers.

Both kernels multiply with the weight as the left operand, out^T = W x^T, so that the tensor cores' tall side
is the weight's rows and few tokens waste little. Decode (up to 16 tokens) reads each byte of the weight once
and is bound by memory; where the weight has too few rows to occupy the card, K is split, and the last program
to finish a tile adds the parts in their order: results do not depend on which one that is. Prefill is a
blocked product that dequantises its tiles; of many tokens, it gets its weights from memory as bfloat16, made
so once a call.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl

from ftd.kernels.dequantize_triton import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.shapes import expect
from ftd.kernels.vector_product_triton import VECTOR_FORMATS, vector_products
from ftd.kernels.weight_tile_triton import (
    FP8_BLOCK,
    PLAIN_FORMATS,
    fp8_scale,
    half_columns,
    half_tiles,
    kernel_planes,
    plain_tile,
)

# Rows that the decode kernel takes; tl.dot needs 16 columns, so fewer cost the same.
DECODE_TOKENS = 16
# Room for the parts of a split product, f32: 16 tokens x 8 parts x 32,768 rows; wider weights need no split.
_PARTIAL_ITEMS = 16 * 8 * 32768
_COUNTERS = 8192
# From so many tokens on, making a weight bfloat16 once is less work than in every tile of tokens.
UNPACK_TOKENS = 256
_DENSE_ITEMS = 1 << 26
# Whether a decode kernel starts while the one before it ends.
EARLY = 0

Activation = Literal["", "silu", "gelu"]


class Launch(NamedTuple):
    """How a kernel is launched: BN rows by BK columns, BT tokens, parts of K, warps, pipeline stages."""

    bn: int
    bk: int
    bt: int
    splits: int
    warps: int
    stages: int


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
def fetch_ahead(codes, stride, rows, begin, K, PLAIN: tl.constexpr, BK: tl.constexpr):
    """Bring the first tile of codes into the caches; nothing waits for it."""
    if PLAIN:
        items = begin + tl.arange(0, BK)
        inside = items < K
    else:
        items = begin // 2 + tl.arange(0, BK // 2)
        inside = items < K // 2
    pointers = codes + rows.to(tl.int64)[:, None] * stride + items[None, :]
    tl.load(pointers, mask=inside[None, :], volatile=True)


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
def tile_rows(tile, N, BN: tl.constexpr, GATED: tl.constexpr):
    """Return the rows of the weight in a tile, and the columns of out they give, both clamped.

    GATED: rows of the gate and of up alternate; N columns of out come from 2N rows.
    """
    i = tl.arange(0, BN)
    if GATED:
        column = tl.minimum(tile * (BN // 2) + i // 2, N - 1)
        return column + i % 2 * N
    return tl.minimum(tile * BN + i, N - 1)


@triton.jit
def finish(
    sums, out, bias,
    tile, tokens, T, N, out_stride,
    BN: tl.constexpr, BT: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Store a tile of sums [BN, BT] as columns of out: plus bias, gated, or added to what is there."""
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


@triton.jit(do_not_specialize=["T"])
def decode_kernel(
    # pointers
    x, planes, bias, norm_weight, out, partial, counters,
    # sizes
    T, N, K, eps,
    # strides
    x_stride, strides, out_stride,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, DTYPE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BT: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One part of K of one tile of BN rows, for at most BT tokens; the last part adds all and stores."""
    # ---- program ids
    tile, part, num_parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    per_part = tl.cdiv(tl.cdiv(K, BK), num_parts) * BK
    begin = part * per_part
    end = tl.minimum(begin + per_part, K)
    tokens = tl.arange(0, BT)
    rows = tile_rows(tile, N, BN, ACTIVATION != "")
    if EARLY > 0:
        # ---- while the kernel before this one ends: nothing that it may write is touched before the wait
        tl.extra.cuda.gdc_launch_dependents()
        if EARLY > 1:
            fetch_ahead(planes[0], strides[0], rows, begin, K, PLAIN, BK)
        tl.extra.cuda.gdc_wait()
    # ---- loop
    if BT == 1:
        sums, squares = vector_products(
            x, planes, norm_weight, rows, begin, end, K, strides, FORMAT, NORM, BN, BK, EVEN, STAGES
        )
    else:
        sums, squares = products(
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
            tl.store(parts + part * PART + BN * BT + tokens, squares)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            sums = tl.zeros((BN, BT), tl.float32)
            squares = tl.zeros((BT,), tl.float32)
            for i in range(num_parts):
                # Other programs wrote these: not from the first cache, which knows nothing of them.
                sums += tl.load(parts + i * PART + place, cache_modifier=".cg")
                if NORM:
                    squares += tl.load(parts + i * PART + BN * BT + tokens, cache_modifier=".cg")
            if NORM:
                sums *= tl.rsqrt(squares / K + eps)[None, :]
            finish(sums, out, bias, tile, tokens, T, N, out_stride, BN, BT, ACTIVATION, BIAS, ADD)
            tl.store(counters + tile, 0)
    else:
        if NORM:
            sums *= tl.rsqrt(squares / K + eps)[None, :]
        finish(sums, out, bias, tile, tokens, T, N, out_stride, BN, BT, ACTIVATION, BIAS, ADD)


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
    rows = tile_rows(tile, N, BN, ACTIVATION != "")
    # ---- loop
    sums, _ = products(
        x, planes, x, tl.minimum(tokens, T - 1), rows, 0, K, T, K, x_stride, strides,
        FORMAT, PLAIN, False, DTYPE, BN, BK, BT, EVEN, True, TAIL,
    )  # fmt: skip
    finish(sums, out, bias, tile, tokens, T, N, out_stride, BN, BT, ACTIVATION, BIAS, ADD)


def decode_launch(weight: DeviceMatrix, tokens: int, precision: str, gated: bool) -> Launch:
    """Return how a product of at most 16 tokens is launched."""
    rows, _ = weight.shape
    bt = 8 if tokens <= 8 else DECODE_TOKENS
    if precision == "f32":
        return Launch(32, 64, DECODE_TOKENS, 1, 4, 2)
    if tokens == 1 and weight.format in VECTOR_FORMATS:
        return Launch(16, 512, 1, parts(rows, 16, 256), 2, 4)
    if weight.format not in PLAIN_FORMATS or weight.format == "q8_0":
        return Launch(64, 256, bt, parts(rows, 64, 256), 4, 3)
    if rows >= 16384:
        return Launch(128, 128, bt, 1, 4, 3)
    return Launch(32, 128, bt, parts(rows, 32, 192), 2, 5)


def parts(rows: int, tile: int, programs: int) -> int:
    """Return the power of two, at most 8, of parts of K that gives so many programs."""
    count = 1
    while count < 8 and triton.cdiv(rows, tile) * count < programs:
        count *= 2
    return count


def prefill_launch(weight: DeviceMatrix, tokens: int, precision: str, gated: bool) -> Launch:
    """Return how a product of more than 16 tokens is launched."""
    if precision == "f32":
        return Launch(32, 32, 64, 1, 4, 2)
    if weight.format == "bf16" and tokens > 256:
        return Launch(128, 64, 256, 1, 8, 3)
    return Launch(128, 64, 128, 1, 8, 4)


class _Scratch(NamedTuple):
    """What parts of split products are stored in; counters are zero between calls."""

    partial: torch.Tensor
    counters: torch.Tensor


_scratch: dict[torch.device, _Scratch] = {}
_dense_scratch: dict[torch.device, torch.Tensor] = {}


def scratch(device: torch.device) -> _Scratch:
    """Return the device's scratch memory, allocated once (16 MiB): products run on one stream per device."""
    if device not in _scratch:
        _scratch[device] = _Scratch(
            torch.empty(_PARTIAL_ITEMS, dtype=torch.float32, device=device),
            torch.zeros(_COUNTERS, dtype=torch.int32, device=device),
        )
    return _scratch[device]


def dense_scratch(device: torch.device, columns: int) -> torch.Tensor:
    """Return memory for rows of ``columns`` bfloat16 values, allocated once (128 MiB)."""
    if device not in _dense_scratch:
        _dense_scratch[device] = torch.empty(_DENSE_ITEMS, dtype=torch.bfloat16, device=device)
    rows = max(1, _DENSE_ITEMS // columns)
    return _dense_scratch[device][: rows * columns].view(rows, columns)


def fitting(launch: Launch, weight: DeviceMatrix, tiles: int) -> Launch:
    """Return ``launch`` with a BK that fits the format, and parts that fit K and the scratch memory."""
    bk = min(launch.bk, FP8_BLOCK) if weight.format == "fp8_b128" else launch.bk
    splits = min(launch.splits, triton.cdiv(weight.shape[1], bk))
    part = (launch.bn + 1) * launch.bt
    if tiles > _COUNTERS or tiles * part * splits > _PARTIAL_ITEMS:
        splits = 1
    return launch._replace(bk=bk, splits=splits)


def dense_product(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    activation: Activation = "",
    precision: str = "fast",
    add: bool = False,
    launch: Launch | None = None,
) -> None:
    """Launch ``matmul`` or, with an activation, ``gated_matmul`` on checked arguments."""
    tokens, (rows, columns) = x.shape[0], weight.shape
    if not tokens:
        return
    decode = tokens <= DECODE_TOKENS
    if launch is None and tokens > UNPACK_TOKENS and precision == "fast" and weight.format != "bf16":
        unpacked_product(x, weight, out, bias=bias, activation=activation, add=add)
        return
    width = rows // 2 if activation else rows
    if launch is None:
        choose = decode_launch if decode else prefill_launch
        launch = choose(weight, tokens, precision, bool(activation))
    tiles = triton.cdiv(width, launch.bn // 2 if activation else launch.bn)
    launch = fitting(launch, weight, tiles)
    planes, strides = kernel_planes(weight)
    meta = {
        "FORMAT": weight.format,
        "PLAIN": weight.format in PLAIN_FORMATS,
        "ACTIVATION": activation,
        "BIAS": bias is not None,
        "ADD": add,
        "DTYPE": tl.float32 if precision == "f32" else tl.bfloat16,
        "BN": launch.bn,
        "BK": launch.bk,
        "BT": launch.bt,
        "EVEN": columns % launch.bk == 0,
        "TAIL": weight.format == "nvfp4" and columns % 32 != 0,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }
    if decode:
        norm_weight, eps = norm if norm is not None else (x, 0.0)
        partial, counters = scratch(x.device)
        decode_kernel[(tiles, launch.splits)](
            x, planes, bias if bias is not None else x, norm_weight, out, partial, counters,
            tokens, width, columns, eps, x.stride(0), strides, out.stride(0),
            NORM=norm is not None, SPLIT=launch.splits > 1, STAGES=launch.stages,
            EARLY=EARLY, launch_pdl=EARLY > 0, **meta,
        )  # fmt: skip
        return
    prefill_kernel[(tiles * triton.cdiv(tokens, launch.bt),)](
        x, planes, bias if bias is not None else x, out,
        tokens, width, columns, x.stride(0), strides, out.stride(0), GROUP=8, **meta,
    )  # fmt: skip


def unpacked_product(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    activation: Activation,
    add: bool,
) -> None:
    """Compute ``dense_product`` of many tokens with the weight made bfloat16 first, some rows at a time."""
    rows, columns = weight.shape
    memory = dense_scratch(x.device, columns)
    halves = 2 if activation else 1
    width = rows // halves
    slices = triton.cdiv(rows, memory.shape[0])
    step = min(width, triton.cdiv(triton.cdiv(width, slices), 128) * 128)
    if step * halves > memory.shape[0]:
        step = memory.shape[0] // halves
    for first in range(0, width, step):
        end = min(first + step, width)
        count = end - first
        for half in range(halves):
            part = memory[half * count : (half + 1) * count]
            dequantize(weight, rows=(half * width + first, half * width + end), out=part)
        dense = DeviceMatrix("bf16", (halves * count, columns), (memory[: halves * count].unsqueeze(0),))
        dense_product(
            x,
            dense,
            out[:, first:end],
            bias=None if bias is None else bias[first:end],
            activation=activation,
            add=add,
        )


def check(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out_width: int,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor, float] | None,
    precision: str,
    out: torch.Tensor | None,
) -> None:
    """Raise ValueError unless the arguments fit the contracts of ``matmul`` and ``gated_matmul``."""
    expect("x", x, "float32 bfloat16", ("T", weight.shape[1]))
    if weight.num_slots != 1:
        raise ValueError(f"a dense weight lies in one slot, got {weight.num_slots}")
    if bias is not None:
        expect("bias", bias, "float32", (out_width,))
    if norm is not None:
        expect("norm", norm[0], "float32", (weight.shape[1],))
        if x.shape[0] > DECODE_TOKENS:
            raise ValueError(f"a norm is part of products of at most {DECODE_TOKENS} tokens: {x.shape[0]}")
    if precision not in ("fast", "f32"):
        raise ValueError(f"precision must be one of fast f32, got {precision}")
    if out is not None:
        expect("out", out, "float32 bfloat16", (x.shape[0], out_width))


def matmul(
    x: torch.Tensor,
    weight: DeviceMatrix,
    bias: torch.Tensor | None = None,
    precision: str = "fast",
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    out: torch.Tensor | None = None,
    add: bool = False,
) -> torch.Tensor:
    """Multiply rows by a weight: ``x W^T`` (+ bias), of the rows' RMS norm if ``norm`` is given.

    x       [T, K] f32 or bf16, any row stride
    weight  [N, K] any FTW format, one slot
    bias    [N]    f32
    norm    (weight [K] f32, eps): x is first normalised as ``rms_norm`` does; at most 16 tokens
    out     [T, N] f32 or bf16, any row stride; allocated in f32 if not given
    add     add to what is in ``out``

    precision "f32": exact weights. "fast": values of x and of the weight in bfloat16. Sums are float32.
    Safe under graph capture if ``out`` is given and ``scratch`` has been called for the device before.

    Bytes moved: the planes of weight once, x and out (where T > 16: x once per tile of rows, from the L2).
    Raises ValueError if a shape or type does not fit or the precision is unknown.
    """
    check(x, weight, weight.shape[0], bias, norm, precision, out)
    if out is None:
        if add:
            raise ValueError("there is nothing to add to: out is not given")
        out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    dense_product(x, weight, out, bias=bias, norm=norm, precision=precision, add=add)
    return out
