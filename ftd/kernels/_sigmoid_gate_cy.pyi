"""Types of the compiled module: see sigmoid_gate_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def sigmoid_gate(
    x: NDArray[np.float32], gate: NDArray[np.float32], pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return x * sigmoid(gate)."""
