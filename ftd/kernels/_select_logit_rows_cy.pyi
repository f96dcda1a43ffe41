"""Types of the compiled module: see select_logit_rows_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def select_logit_rows(
    x: NDArray[np.float32], rows: NDArray[np.int32], pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return the rows of ``x`` whose logits are wanted."""
