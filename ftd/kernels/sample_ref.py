"""sample: the definition of choosing one token from its logits.

The chain, in llama.cpp's default order; each link sees what the one before it left, and renormalises:

    penalties ─▶ top_k ─▶ typical_p ─▶ top_p ─▶ min_p ─▶ temperature ─▶ draw
"""

from math import isfinite
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ftd.errors import EngineError
from ftd.kernels.shapes import ArrayLike, expect, expect_range


class SampleParams(Protocol):
    """What decides the next token of a request; in brackets, the value that switches a link off."""

    @property
    def temperature(self) -> float:
        """Divisor of the logits before the draw; <= 0 takes the largest logit, the lowest id among equals."""
        ...

    @property
    def top_k(self) -> int:
        """Keep the k largest logits, lower ids first among equals [<= 0]."""
        ...

    @property
    def top_p(self) -> float:
        """Keep the most probable tokens until their sum reaches top_p, at least one [>= 1]."""
        ...

    @property
    def min_p(self) -> float:
        """Keep the tokens at least min_p times as probable as the most probable one [<= 0]."""
        ...

    @property
    def typical_p(self) -> float:
        """Keep the tokens whose surprise is nearest the entropy until their sum exceeds typical_p [>= 1]."""
        ...

    @property
    def repeat_last_n(self) -> int:
        """Tokens at the end of the history that are penalised [0]; negative takes the whole history."""
        ...

    @property
    def repeat_penalty(self) -> float:
        """Divisor of positive and factor on other logits of penalised tokens [1]."""
        ...

    @property
    def presence_penalty(self) -> float:
        """Subtracted from the logit of each penalised token [0]."""
        ...

    @property
    def frequency_penalty(self) -> float:
        """Subtracted as often as the token occurs [0]."""
        ...


def check(logits: ArrayLike, params: SampleParams, history: ArrayLike, uniform: float) -> None:
    """Raise ValueError unless the arguments fit the contract of ``sample``."""
    expect("logits", logits, "float32", ("V",))
    expect("history", history, "int32", ("S",))
    if logits.shape[0] < 1:
        raise ValueError("logits must hold at least one value")
    if not 0.0 <= uniform < 1.0:
        raise ValueError(f"uniform must lie in 0 to 1, 1 excluded, got {uniform}")
    if not 0.0 < params.repeat_penalty < np.inf:
        raise ValueError(f"repeat_penalty must be finite and above 0, got {params.repeat_penalty}")
    for name, value in (
        ("temperature", params.temperature),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("typical_p", params.typical_p),
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ):
        if not isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


def recent(history: NDArray[np.int32], params: SampleParams, num_ids: int) -> NDArray[np.int32]:
    """Return the ids that the penalties look at; raises ValueError if one is no id of the vocabulary."""
    changes = params.repeat_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
    start = max(0, len(history) - params.repeat_last_n) if params.repeat_last_n >= 0 else 0
    last: NDArray[np.int32] = history[start if changes else len(history) :]
    if not last.size:
        return last
    expect_range("history", int(last.min()), int(last.max()), 0, num_ids - 1)
    return last


def reject(largest: float) -> EngineError:
    """Return the error for logits whose largest value (NaN if any is) cannot be sampled from."""
    return EngineError(
        f"the model computed logits that are not finite: largest is {largest}",
        "check the weights of this model, or lower the context length",
    )


def probabilities(
    logits: NDArray[np.float32], params: SampleParams, history: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return [V] f64: the distribution that ``sample`` draws from. Raises EngineError as ``sample`` does."""
    x = logits.astype(np.float64)
    if not np.isfinite(x.max()):
        raise reject(float(x.max()))
    ids, counts = np.unique(recent(history, params, len(x)), return_counts=True)
    penalised = np.where(x[ids] > 0.0, x[ids] / params.repeat_penalty, x[ids] * params.repeat_penalty)
    # float32, as the fast version keeps logits: equal logits stay equal in both
    x[ids] = (penalised - counts * params.frequency_penalty - params.presence_penalty).astype(np.float32)
    if not np.isfinite(x.max()):
        raise reject(float(x.max()))
    order = np.lexsort((np.arange(len(x)), -x))  # most probable first, lower ids first among equals
    if params.temperature <= 0.0:
        certain = np.zeros(len(x))
        certain[order[0]] = 1.0
        return certain
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.typical_p < 1.0:
        p = _softmax(x[order])
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(p)
            entropy = np.where(p > 0.0, p * surprise, 0.0).sum()
        nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
        kept = nearest[: int(np.sum(np.cumsum(p[nearest]) <= params.typical_p)) + 1]
        order = order[np.sort(kept)]
    if params.top_p < 1.0:
        order = order[: int(np.sum(np.cumsum(_softmax(x[order])) < params.top_p)) + 1]
    if params.min_p > 0.0:
        order = order[: max(1, int(np.sum(x[order] >= x[order[0]] + np.log(params.min_p))))]
    result = np.zeros(len(x))
    result[order] = _softmax(x[order], params.temperature)
    return result


def sample(
    logits: NDArray[np.float32], params: SampleParams, history: NDArray[np.int32], uniform: float
) -> int:
    """Return the id of the next token.

    logits   [V] f32   minus infinity forbids a token
    history  [S] i32   ids of the sequence so far, prompt included
    uniform            0 <= uniform < 1: the draw takes the first id, in rising order, whose cumulative
                       probability exceeds it, so the same number gives the same token whatever else runs

    Bytes moved: 4*V (8*V more where a penalty changes logits).
    Raises EngineError if a logit is NaN or the largest is not finite, ValueError if an argument breaks the
    contract.
    """
    check(logits, params, history, uniform)
    p = probabilities(logits, params, history)
    cumulative = np.cumsum(p)
    drawn = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(drawn, int(np.flatnonzero(p)[-1]))  # the product may round up to the whole sum


def _softmax(x: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        weight = np.exp((x - x.max()) / temperature)
    return np.asarray(weight / weight.sum())
