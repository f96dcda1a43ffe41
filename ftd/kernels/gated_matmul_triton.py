"""gated_matmul on a GPU: the first half of a gated mlp, both products and the activation in one kernel."""

from typing import Literal

import torch

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.matmul_triton import Scaled, check, dense_product


def gated_matmul(
    x: torch.Tensor,
    weight: DeviceMatrix,
    activation: Literal["silu", "gelu"],
    precision: str = "fast",
    *,
    norm: tuple[torch.Tensor, float] | Scaled | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``act(x Wg^T) * (x Wu^T)``, of the rows' RMS norm if ``norm`` is given.

    x           [T, K]  f32 or bf16, any row stride
    weight      [2F, K] any FTW format, one slot: the rows of the gate, then those of up
    activation  "silu", or "gelu" in its tanh form
    norm        (weight [K] f32, eps), or ``Scaled``: as ``matmul_into`` takes it; at most 16 tokens
    out         [T, F]  f32 or bf16, any row stride; allocated in f32 if not given

    Precision, capture and bytes moved: as ``matmul``.
    Raises ValueError if a shape or type does not fit, or the activation or the precision is unknown.
    """
    if activation not in ("silu", "gelu"):
        raise ValueError(f"activation must be one of silu gelu, got {activation}")
    rows = weight.shape[0]
    if rows % 2:
        raise ValueError(f"a gated weight has as many rows of gate as of up, got {rows} rows")
    if out is None:
        out = torch.empty((x.shape[0], rows // 2), dtype=torch.float32, device=x.device)
    check(x, weight, rows // 2, None, norm, precision, out)
    dense_product(x, weight, out, norm=norm, activation=activation, precision=precision)
    return out
