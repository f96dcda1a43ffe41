"""Types of the compiled module: see gated_delta_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def gated_delta(
    qkv: NDArray[np.float32],
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    decay: NDArray[np.float32],
    bias: NDArray[np.float32],
    state: NDArray[np.float32],
    key_heads: int,
    q_start: NDArray[np.int32],
    positions: NDArray[np.int32],
    state_index: NDArray[np.int32],
    tiled: bool = False,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Read and correct one matrix of state for each value head; the state is written in place."""
