"""position_embedding on a GPU, and the last position of each token's sequence, where encoders look."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# 8 values a thread of 4 warps; tokens of a program that looks for their sequences.
BLOCK, TOKENS = 1024, 64
# One kernel for up to so many sequences: nobody waits for a compiler because another prompt came.
MIN_SEQUENCES = 16


@triton.jit
def _position_embedding_kernel(
    # pointers
    x_ptr, positions_ptr, table_ptr, out_ptr,
    # sizes
    width,
    # strides
    x_stride, out_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    position = tl.load(positions_ptr + row).to(tl.int64)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(table_ptr + position * width + column, mask=mask, other=0.0)
    tl.store(out_ptr + row * out_stride + column, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens", "B"])
def _last_positions_kernel(
    # pointers
    q_start_ptr, kv_len_ptr, out_ptr,
    # sizes
    num_tokens, B,
    # meta
    TOKENS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    every = tl.arange(0, SEQUENCES)
    ends = tl.load(q_start_ptr + 1 + every, mask=every < B, other=1 << 30)
    sequence = tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), axis=1)
    length = tl.load(kv_len_ptr + sequence, mask=sequence < B, other=1)
    tl.store(out_ptr + token, length - 1, mask=token < num_tokens)


def position_embedding_into(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    """Write to ``out`` each row of ``x`` and the row of ``table`` that its position names, added.

    x, out     [T, D] f32 or bf16   any stride between rows; out may be x
    positions  [T] i32, table [S, D] f32

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "D"))
    tokens, width = x.shape
    expect("positions", positions, "int32", (tokens,))
    expect("table", table, "float32", ("S", width))
    expect("out", out, FLOATS, tuple(x.shape))
    if tokens and width:
        _position_embedding_kernel[(tokens, ceil_div(width, BLOCK))](
            x, positions, table, out, width, x.stride(0), out.stride(0), BLOCK=BLOCK, num_warps=4
        )
    return out


def position_embedding(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, pool: object = None
) -> torch.Tensor:
    """Return x + table[positions], of x's type; see position_embedding_ref."""
    return position_embedding_into(x, positions, table, out=torch.empty_like(x))


def last_positions(q_start: torch.Tensor, kv_len: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Return the last position of the sequence that each token belongs to.

    q_start  [B + 1] i32, kv_len [B] i32
    out      [T] i32

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    sequences = kv_len.shape[0]
    expect("q_start", q_start, "int32", (sequences + 1,))
    expect("kv_len", kv_len, "int32", (sequences,))
    expect("out", out, "int32", ("T",))
    tokens = out.shape[0]
    if tokens and sequences:
        _last_positions_kernel[(ceil_div(tokens, TOKENS),)](
            q_start, kv_len, out, tokens, sequences,
            TOKENS=TOKENS, SEQUENCES=max(MIN_SEQUENCES, power_of_two(sequences)), num_warps=1,
        )  # fmt: skip
    return out
