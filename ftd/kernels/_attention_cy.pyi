"""Types of the compiled module: see attention_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def attention(
    q: NDArray[np.float32],
    k_pages: NDArray[np.floating],
    v_pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    scale: float,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
    pool: Pool | None = None,
    causal: bool = True,
) -> NDArray[np.float32]:
    """Return attention of each query over its sequence's pages."""
