"""What ``sample_triton`` takes and gives, as the host sees it: which requests it serves, how rows are filled.

A row of parameters is f64 [8], a row of history i32 [MAX_HISTORY]: the ids that penalties look at, then -1.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.sample_ref import SampleParams, recent

# What a row of parameters holds, in this order.
TEMPERATURE, TOP_K, TOP_P, MIN_P, REPEAT, PRESENCE, FREQUENCY, UNIFORM = range(8)
NUM_PARAMETERS = 8
# Numbers of candidates that kernels are built for, and how many logits one program looks through for them.
CHUNKS = {1: 4096, 64: 4096, 256: 8192}
MAX_HISTORY = 256
# The id that says that logits are not finite (raise sample_ref.reject).
REJECTED = -1


def supports(params: SampleParams, num_logprobs: int = -1) -> bool:
    """Return whether ``sample`` can serve a request; num_logprobs: alternatives wanted, -1 none.

    Alternatives are those before penalties, which are candidates only where there are no penalties.
    """
    penalised = changes_logits(params)
    if penalised and not 0 <= params.repeat_last_n <= MAX_HISTORY:
        return False
    if num_logprobs > (0 if penalised else max(CHUNKS)):
        return False
    return params.temperature <= 0.0 or (1 <= params.top_k <= max(CHUNKS) and params.typical_p >= 1.0)


def changes_logits(params: SampleParams) -> bool:
    """Return whether there are penalties."""
    return bool(
        params.repeat_last_n != 0
        and (params.repeat_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)
    )


def candidates_needed(params: SampleParams, num_logprobs: int = -1) -> int:
    """Return the smallest ``num_candidates`` that serves a request that ``supports`` accepts."""
    needed = max(1, num_logprobs, 1 if params.temperature <= 0.0 else params.top_k)
    return min(count for count in CHUNKS if count >= needed)


def fill_row(
    parameters: NDArray[np.float64],
    history_row: NDArray[np.int32],
    params: SampleParams,
    history: NDArray[np.int32],
    uniform: float,
    vocab_size: int,
) -> None:
    """Write one row of what ``sample`` takes: parameters [8] and history [MAX_HISTORY]."""
    parameters[TEMPERATURE], parameters[TOP_K] = params.temperature, params.top_k if params.top_k > 0 else 1
    parameters[TOP_P], parameters[MIN_P], parameters[UNIFORM] = params.top_p, params.min_p, uniform
    parameters[REPEAT : FREQUENCY + 1] = 1.0, 0.0, 0.0
    history_row[:] = -1
    if changes_logits(params):
        parameters[REPEAT] = params.repeat_penalty
        parameters[PRESENCE], parameters[FREQUENCY] = params.presence_penalty, params.frequency_penalty
        last = recent(history, params, vocab_size)
        history_row[: len(last)] = last
