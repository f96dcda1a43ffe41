"""Types of the compiled module: see causal_conv_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def causal_conv(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    state: NDArray[np.float32],
    q_start: NDArray[np.int32],
    positions: NDArray[np.int32],
    state_index: NDArray[np.int32],
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Convolve each channel with its last inputs, then silu; the state is written in place."""
