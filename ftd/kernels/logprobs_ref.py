"""logprobs: the definition of what the OpenAI and Ollama surfaces report beside a token."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.sample_ref import reject
from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(logits: ArrayLike, token: int, num_top: int) -> None:
    """Raise ValueError unless the arguments fit the contract of ``logprobs``."""
    expect("logits", logits, "float32", ("V",))
    expect_range("token", token, token, 0, logits.shape[0] - 1)
    expect_range("num_top", num_top, num_top, 0, 2**31 - 1)


def logprobs(
    logits: NDArray[np.float32], token: int, num_top: int = 0
) -> tuple[float, list[tuple[int, float]]]:
    """Return the natural logarithm of a token's probability, and those of the ``num_top`` most probable ones.

    logits   [V] f32, as the model computed them: before penalties, filters and temperature
    returns  (logprob of token, [(id, logprob), …] most probable first, lower ids first among equals)

    Bytes moved: 4*V.
    Raises EngineError if a logit is NaN or the largest is not finite, ValueError if an argument breaks the
    contract.
    """
    check(logits, token, num_top)
    x = logits.astype(np.float64)
    top = float(x.max())
    if not np.isfinite(top):
        raise reject(top)
    x -= top + np.log(np.exp(x - top).sum())
    best = np.lexsort((np.arange(len(x)), -x))[:num_top]
    return float(x[token]), [(int(i), float(x[i])) for i in best]
