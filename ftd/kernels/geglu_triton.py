"""geglu on a GPU, for products that are not fused with it."""

import torch

from ftd.kernels.swiglu_triton import gated


def geglu(gate: torch.Tensor, up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return gelu(gate) * up with the tanh form of gelu; see geglu_ref.

    gate, up  [T, F] f32 or bf16   any stride between rows
    out       [T, F] f32 or bf16   may be gate or up; allocated if None

    Safe under graph capture if ``out`` is given.
    Raises ValueError if a shape or type differs.
    """
    return gated(gate, up, out, True)
