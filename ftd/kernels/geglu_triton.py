"""geglu on a GPU, for products that are not fused with it."""

import torch

from ftd.kernels.swiglu_triton import gated_into


def geglu(gate: torch.Tensor, up: torch.Tensor, pool: object = None) -> torch.Tensor:
    """Return gelu(gate) * up, of gate's type; see geglu_ref. f32 or bf16, any stride between rows."""
    return gated_into(gate, up, "gelu", out=torch.empty_like(gate))
