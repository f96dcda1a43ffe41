"""Types of the compiled module: see embedding_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import QuantMatrix

def embedding(
    ids: NDArray[np.int32], weight: QuantMatrix, scale: float = 1.0, pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return the dequantised rows of ``weight`` that ``ids`` name."""
