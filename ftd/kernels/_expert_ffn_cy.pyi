"""Types of the compiled module: see expert_ffn_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import ExpertBank

def expert_ffn(
    x: NDArray[np.float32],
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
    bank: ExpertBank,
    activation: str = "silu",
    limit: float = 7.0,
    precision: str = "fast",
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return the weighted sum of what each token's experts make of it."""
