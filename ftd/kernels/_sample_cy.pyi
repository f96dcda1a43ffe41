"""Types of the compiled module: see sample_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.sample_ref import SampleParams

def sample(
    logits: NDArray[np.float32], params: SampleParams, history: NDArray[np.int32], uniform: float
) -> int:
    """Return the id of the next token."""
