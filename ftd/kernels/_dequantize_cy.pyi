"""Types of the compiled module: see dequantize_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import QuantMatrix

def dequantize(weight: QuantMatrix, pool: Pool | None = None) -> NDArray[np.float32]:
    """Return the exact values of ``weight`` as floats, [N, K]."""
