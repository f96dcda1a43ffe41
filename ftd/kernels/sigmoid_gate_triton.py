"""sigmoid_gate on a GPU."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.shapes import ceil_div, expect

# 8 values a thread of 4 warps: two loads of 16 bytes each.
BLOCK = 1024
FLOATS = "float32 bfloat16"


@triton.jit
def _sigmoid_gate(
    # pointers
    x, gate, out,
    # sizes
    F,
    # strides
    x_stride, gate_stride, out_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    value = tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    wide = tl.load(gate + token * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    decay = tl.exp(-tl.abs(wide))
    value *= tl.where(wide >= 0.0, 1.0, decay) / (1.0 + decay)
    tl.store(out + token * out_stride + column, value, mask=inside)


def sigmoid_gate_into(x: torch.Tensor, gate: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Write x * sigmoid(gate) to ``out`` and return it.

    x, gate, out  [T, F] f32 or bf16   any stride between rows; out may be x or gate

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "F"))
    expect("gate", gate, FLOATS, tuple(x.shape))
    expect("out", out, FLOATS, tuple(x.shape))
    tokens, width = x.shape
    if tokens and width:
        _sigmoid_gate[(tokens, ceil_div(width, BLOCK))](
            x, gate, out, width, x.stride(0), gate.stride(0), out.stride(0), BLOCK=BLOCK
        )
    return out


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor, pool: object = None) -> torch.Tensor:
    """Return x * sigmoid(gate), of x's type; see sigmoid_gate_ref. f32 or bf16, any stride between rows."""
    return sigmoid_gate_into(x, gate, out=torch.empty_like(x))
