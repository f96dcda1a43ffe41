"""causal_conv on a GPU: few tokens in one kernel, many in one for the results and one for the kept inputs.

A result reads the step's inputs and, at the beginning of a sequence, what its slot kept of the step before;
only when all results are there, the slot takes the step's last inputs.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.causal_conv_ref import check_weights
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Up to so many tokens one program goes through a sequence.
FEW_TOKENS = 16
BLOCK_CHANNELS = 128
BLOCK_TOKENS = 16
# One kernel for up to so many sequences: nobody waits for a compiler because another prompt came.
MIN_SEQUENCES = 16


@triton.jit
def silu(x):
    """Return x / (1 + exp(-x)); exp overflows for no x."""
    decay = tl.exp(-tl.abs(x))
    return x * tl.where(x >= 0.0, 1.0, decay) / (1.0 + decay)


@triton.jit
def load_input(x, state, source, start, slot, channel, inside, C, x_stride, KEPT: tl.constexpr):
    """Return inputs [rows, channels] at tokens ``source``; those before ``start`` from the slot, of -1 zeros.

    source, start, slot, inside  [rows] or scalars as columns
    """
    known = inside & (channel < C)
    is_now = source >= start
    now = tl.load(x + source.to(tl.int64) * x_stride + channel, mask=known & is_now, other=0.0)
    place = (slot.to(tl.int64) * KEPT + KEPT + source - start) * C + channel
    before = tl.load(state + place, mask=known & (source < start) & (slot >= 0), other=0.0)
    return now.to(tl.float32) + before


@triton.jit
def store_results(
    x, weight, state, out, token, start, slot, inside, channel, C, x_stride, out_stride,
    TAPS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store the results of ``token`` [TOKENS, 1], whose sequences begin at ``start`` and have ``slot``."""
    total = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(TAPS):
        source = token - (TAPS - 1) + tap
        values = load_input(x, state, source, start, slot, channel, inside, C, x_stride, TAPS - 1)
        total += values * tl.load(weight + channel * TAPS + tap, mask=channel < C, other=0.0)
    tl.store(out + token.to(tl.int64) * out_stride + channel, silu(total), mask=inside & (channel < C))


@triton.jit
def keep_inputs(
    x, state, start, end, slot, is_new, channel, C, x_stride, TAPS: tl.constexpr, ROWS: tl.constexpr
):
    """Let ``slot`` take the last inputs of a sequence; every result that reads it must be there."""
    row = tl.arange(0, ROWS)[:, None]
    inside = row < TAPS - 1
    old = tl.where(is_new, -1, slot)
    values = load_input(x, state, end - (TAPS - 1) + row, start, old, channel, inside, C, x_stride, TAPS - 1)
    tl.debug_barrier()  # rows move within the slot: all are read before one is written
    place = (slot.to(tl.int64) * (TAPS - 1) + row) * C + channel
    tl.store(state + place, values, mask=inside & (channel < C))


@triton.jit
def rows_of(sequence, q_start, kv_len, HAS_LEN: tl.constexpr):
    """Return where the rows of a sequence begin and end; padding has none."""
    start, end = tl.load(q_start + sequence), tl.load(q_start + sequence + 1)
    if HAS_LEN:
        end = tl.where(tl.load(kv_len + sequence) > 0, end, start)
    return start, end


@triton.jit
def _few(
    # pointers
    x, weight, state, q_start, positions, state_index, kv_len, out,
    # sizes
    C,
    # strides
    x_stride, out_stride,
    # meta
    TAPS: tl.constexpr, ROWS: tl.constexpr, HAS_LEN: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    start, end = rows_of(sequence, q_start, kv_len, HAS_LEN)
    if start < end:
        slot = tl.load(state_index + sequence)
        is_new = tl.load(positions + start) == 0
        old = tl.where(is_new, -1, slot)
        for first in range(start, end, TOKENS):
            token = (first + tl.arange(0, TOKENS))[:, None]
            store_results(
                x, weight, state, out, token, start, old, token < end, channel, C, x_stride, out_stride,
                TAPS, TOKENS, CHANNELS,
            )  # fmt: skip
        tl.debug_barrier()
        keep_inputs(x, state, start, end, slot, is_new, channel, C, x_stride, TAPS, ROWS)


@triton.jit(do_not_specialize=["T", "B"])
def _many(
    # pointers
    x, weight, state, q_start, positions, state_index, kv_len, out,
    # sizes
    T, B, C,
    # strides
    x_stride, out_stride,
    # meta
    TAPS: tl.constexpr, HAS_LEN: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    every = tl.arange(0, SEQUENCES)
    ends = tl.load(q_start + 1 + every, mask=every < B, other=1 << 30)
    sequence = tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), axis=1)
    inside = (token < T) & (sequence < B)
    if HAS_LEN:
        inside = inside & (tl.load(kv_len + sequence, mask=inside, other=0) > 0)
    start = tl.load(q_start + sequence, mask=inside, other=0)
    slot = tl.load(state_index + sequence, mask=inside, other=-1)
    is_new = tl.load(positions + start, mask=inside, other=0) == 0
    slot = tl.where(is_new, -1, slot)
    store_results(
        x, weight, state, out, token[:, None], start[:, None], slot[:, None], inside[:, None], channel, C,
        x_stride, out_stride, TAPS, TOKENS, CHANNELS,
    )  # fmt: skip


@triton.jit
def _keep(
    # pointers
    x, state, q_start, positions, state_index, kv_len,
    # sizes
    C,
    # strides
    x_stride,
    # meta
    TAPS: tl.constexpr, ROWS: tl.constexpr, HAS_LEN: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    start, end = rows_of(sequence, q_start, kv_len, HAS_LEN)
    if start < end:
        slot = tl.load(state_index + sequence)
        is_new = tl.load(positions + start) == 0
        keep_inputs(x, state, start, end, slot, is_new, channel, C, x_stride, TAPS, ROWS)


def causal_conv_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    q_start: torch.Tensor,
    positions: torch.Tensor,
    state_index: torch.Tensor,
    *,
    out: torch.Tensor,
    kv_len: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolve each channel with its last K inputs; write that to ``out`` and return it.

    x, out  [T, C] f32 or bf16, out not x; weight [C, K] f32; state [slots, K-1, C] f32, written in place
    kv_len  [B] i32   a sequence where it is 0 is padding: its results and its slot stay as they are

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, "float32 bfloat16", ("T", "C"))
    tokens, channels = x.shape
    check_weights(channels, weight, state)
    expect("q_start", q_start, "int32", ("B + 1",))
    sequences = q_start.shape[0] - 1
    expect("positions", positions, "int32", (tokens,))
    expect("state_index", state_index, "int32", (sequences,))
    if kv_len is not None:
        expect("kv_len", kv_len, "int32", (sequences,))
    expect("out", out, "float32 bfloat16", (tokens, channels))
    if not tokens or not sequences:
        return out
    taps = weight.shape[1]
    blocks = ceil_div(channels, BLOCK_CHANNELS)
    places = (q_start, positions, state_index, kv_len)
    options = {"TAPS": taps, "HAS_LEN": kv_len is not None, "CHANNELS": BLOCK_CHANNELS}
    rows = power_of_two(taps - 1)
    if tokens <= FEW_TOKENS:
        _few[(sequences, blocks)](
            x,
            weight,
            state,
            *places,
            out,
            channels,
            x.stride(0),
            out.stride(0),
            ROWS=rows,
            TOKENS=1,
            **options,
        )
        return out
    _many[(ceil_div(tokens, BLOCK_TOKENS), blocks)](
        x, weight, state, *places, out, tokens, sequences, channels, x.stride(0), out.stride(0),
        TOKENS=BLOCK_TOKENS, SEQUENCES=max(MIN_SEQUENCES, power_of_two(sequences)), **options,
    )  # fmt: skip
    _keep[(sequences, blocks)](x, state, *places, channels, x.stride(0), ROWS=rows, **options)
    return out


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    q_start: torch.Tensor,
    positions: torch.Tensor,
    state_index: torch.Tensor,
    pool: object = None,
) -> torch.Tensor:
    """Return each channel of x convolved with its last K inputs, of x's type; see causal_conv_ref."""
    return causal_conv_into(x, weight, state, q_start, positions, state_index, out=torch.empty_like(x))
