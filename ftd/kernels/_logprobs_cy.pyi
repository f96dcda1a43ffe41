"""Types of the compiled module: see logprobs_ref.py."""

import numpy as np
from numpy.typing import NDArray

def logprobs(
    logits: NDArray[np.float32], token: int, num_top: int = 0
) -> tuple[float, list[tuple[int, float]]]:
    """Return a token's logprob and the most probable ids with theirs."""
