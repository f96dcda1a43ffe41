"""Types of the compiled module: see matmul_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import QuantMatrix

def matmul(
    x: NDArray[np.float32],
    weight: QuantMatrix,
    bias: NDArray[np.float32] | None = None,
    precision: str = "fast",
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return x W^T (+ bias), [T, N]."""
