"""Types of the compiled module: see route_topk_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def route_topk(
    logits: NDArray[np.float32],
    num_chosen: int,
    scoring: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    bias: NDArray[np.float32] | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    pool: Pool | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return ids and weights of the experts of each token."""
