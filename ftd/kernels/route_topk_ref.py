"""route_topk: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range

MAX_GROUPS = 256
SCORINGS: tuple[str, ...] = ("softmax", "sigmoid")


def check(
    logits: ArrayLike,
    num_chosen: int,
    scoring: str,
    bias: ArrayLike | None,
    num_groups: int,
    top_groups: int,
    group_top: int,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``route_topk``."""
    expect("logits", logits, "float32", ("T", "E"))
    num_experts = logits.shape[1]
    if scoring not in SCORINGS:
        raise ValueError(f"scoring must be one of {' '.join(SCORINGS)}, got {scoring}")
    if bias is not None:
        expect("bias", bias, "float32", (num_experts,))
    expect_range("num_groups", num_groups, num_groups, 1, MAX_GROUPS)
    if num_experts % num_groups:
        raise ValueError(f"experts must divide into equal groups, got {num_experts} and {num_groups}")
    group_size = num_experts // num_groups
    expect_range("top_groups", top_groups, top_groups, 1, num_groups)
    if num_groups > 1:
        expect_range("group_top", group_top, group_top, 1, group_size)
    expect_range("num_chosen", num_chosen, num_chosen, 1, top_groups * group_size)


def _scores(logits: NDArray[np.float32], scoring: str) -> NDArray[np.float64]:
    """Return float32 scores of all experts, in float64."""
    wide = logits.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if scoring == "sigmoid":
            scores = 1.0 / (1.0 + np.exp(-wide))
        else:
            powers = np.exp(wide - wide.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
    return scores.astype(np.float32).astype(np.float64)


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Return the indices of the ``count`` largest of each row, largest first; of equals the lowest."""
    ranked = np.where(np.isnan(values), -np.inf, values)
    return np.argsort(-ranked, axis=1, kind="stable")[:, :count].astype(np.int32)


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
    pool: object = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Choose the experts of each token, and what their results count for.

    logits   [T, E] f32   of the router
    bias     [E]    f32   added to the scores where experts are chosen, not to their weights
    returns  ids [T, K] i32, best first, and weights [T, K] f32; K = num_chosen

    Scores are softmax over all experts or sigmoid. The K best are chosen; of equals the lowest id. With
    num_groups > 1 only experts of the top_groups best groups can be: a group counts the sum of its group_top
    best. Weights are the scores of the chosen; ``renormalise`` divides them by their sum (for softmax that is
    softmax over the chosen alone), then ``scale`` multiplies them. A NaN ranks last.

    Bytes moved: 4*T*E, 4*E of a bias, 8*T*K written.
    Raises ValueError if a shape or dtype differs, or K or the groups are not possible with E experts.
    """
    check(logits, num_chosen, scoring, bias, num_groups, top_groups, group_top)
    if logits.shape[0] == 0:
        return np.empty((0, num_chosen), np.int32), np.empty((0, num_chosen), np.float32)
    scores = _scores(logits, scoring)
    # Logits rank as their softmax does, without its roundings.
    is_plain = scoring == "softmax" and bias is None and num_groups == 1
    ranks = logits.astype(np.float64) if is_plain else scores
    if bias is not None:
        ranks = (ranks.astype(np.float32) + bias).astype(np.float64)
    if num_groups > 1:
        grouped = ranks.reshape(len(ranks), num_groups, -1)
        best = -np.sort(np.where(np.isnan(grouped), np.inf, -grouped), axis=2)[:, :, :group_top]
        allowed = np.zeros((len(ranks), num_groups), bool)
        np.put_along_axis(allowed, _largest(best.sum(axis=2), top_groups), True, axis=1)
        ranks = np.where(np.repeat(allowed, grouped.shape[2], axis=1), ranks, -np.inf)
    ids = _largest(ranks, num_chosen)
    weights = np.take_along_axis(scores, ids, axis=1)
    if renormalise and scoring == "softmax":
        chosen = np.take_along_axis(logits.astype(np.float64), ids, axis=1)
        with np.errstate(invalid="ignore"):
            powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
            weights = powers / powers.sum(axis=1, keepdims=True)
    elif renormalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20)
    return ids, (weights * np.float32(scale)).astype(np.float32)
