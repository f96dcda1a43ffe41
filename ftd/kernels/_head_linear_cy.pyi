"""Types of the compiled module: see head_linear_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import QuantMatrix

def head_linear(
    x: NDArray[np.float32],
    weight: QuantMatrix,
    tail: int = 0,
    interleaved: bool = False,
    first: int = 0,
    rows: int = 0,
    transposed: bool = False,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return each head's product with its own rows of ``weight``, and its tail."""
