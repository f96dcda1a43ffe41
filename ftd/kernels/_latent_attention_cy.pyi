"""Types of the compiled module: see latent_attention_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def latent_attention(
    q: NDArray[np.float32],
    pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    latent: int,
    scale: float,
    selected: NDArray[np.uint64] | None = None,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return causal attention of each head over its sequence's latents."""
