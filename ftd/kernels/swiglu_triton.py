"""swiglu on a GPU, for products that are not fused with it."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from typing import Literal

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect

# 8 values a thread of 4 warps: two loads of 16 bytes each.
BLOCK = 1024


@triton.jit
def silu(x):
    """Return x / (1 + exp(-x)) of f32 values."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def gelu(x):
    """Return the tanh form of gelu of f32 values."""
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def _gated_kernel(
    # pointers
    gate_ptr,
    up_ptr,
    out_ptr,
    # sizes
    width,
    # strides
    gate_stride,
    up_stride,
    out_stride,
    # meta
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width

    gate = tl.load(gate_ptr + token * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + token * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    y = (gelu(gate) if GELU else silu(gate)) * up

    tl.store(out_ptr + token * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def gated_into(
    gate: torch.Tensor, up: torch.Tensor, activation: Literal["silu", "gelu"], *, out: torch.Tensor
) -> torch.Tensor:
    """Write act(gate) * up to ``out`` and return it; what swiglu and geglu launch.

    gate, up  [T, F] f32 or bf16   any stride between rows
    out       [T, F] f32 or bf16   may be gate or up

    Safe under graph capture.
    Raises ValueError if a shape or type differs.
    """
    expect("gate", gate, FLOATS, ("T", "F"))
    expect("up", up, FLOATS, tuple(gate.shape))
    expect("out", out, FLOATS, tuple(gate.shape))
    tokens, width = gate.shape
    if tokens and width:
        grid = (tokens, ceil_div(width, BLOCK))
        _gated_kernel[grid](
            gate,
            up,
            out,
            width,
            gate.stride(0),
            up.stride(0),
            out.stride(0),
            GELU=activation == "gelu",
            BLOCK=BLOCK,
            num_warps=4,
        )
    return out


def swiglu(gate: torch.Tensor, up: torch.Tensor, pool: object = None) -> torch.Tensor:
    """Return silu(gate) * up, of gate's type; see swiglu_ref. f32 or bf16, any stride between rows."""
    return gated_into(gate, up, "silu", out=torch.empty_like(gate))
