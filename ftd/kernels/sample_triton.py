"""sample on a GPU, for what common requests ask: greedy, or top_k up to 256; the rest stays with the host.

    program (chunk, row)   penalties ─▶ the largest K logits of a chunk, in order of ids; the sum of exp
    program (row)          the largest K of those ─▶ top_p ─▶ min_p ─▶ temperature ─▶ draw

The largest K are found through their smallest: bit by bit the largest number that K keys reach. Logits become
keys, whole numbers that order like them, so that equal ones are counted exactly; lower ids come first among
equals as they do in memory. Probabilities are f64 as in the reference.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ftd.kernels.sample_ref import SampleParams, check, reject
from ftd.kernels.sample_rows import (
    CHUNKS,
    FREQUENCY,
    MAX_HISTORY,
    MIN_P,
    NUM_PARAMETERS,
    PRESENCE,
    REJECTED,
    REPEAT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    UNIFORM,
    candidates_needed,
    fill_row,
    supports,
)
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# The second kernel takes in all candidates of a row at once: 64 for each of 512 threads.
MAX_CANDIDATES_IN = 32768

_LOWEST_KEY = tl.constexpr(-(2**31))
_REJECTED = tl.constexpr(REJECTED)
_NO_ID = tl.constexpr(2**31 - 1)
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(i) for i in (TEMPERATURE, TOP_K, TOP_P, MIN_P))
_REPEAT, _PRESENCE, _FREQUENCY, _UNIFORM = (tl.constexpr(i) for i in (REPEAT, PRESENCE, FREQUENCY, UNIFORM))
_NUM_PARAMETERS = tl.constexpr(NUM_PARAMETERS)


@triton.jit
def _key(x):
    """Return i32 that order like ``x`` f32; both zeros are one, NaN is behind all."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return tl.where(is_nan, _LOWEST_KEY, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def _value(key):
    """Return the f32 of which ``key`` is the key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _largest(keys, K: tl.constexpr):
    """Return which K of ``keys`` are the largest, the first among equals, and each one's place among them."""
    if K == 1:
        threshold = tl.max(keys, axis=0)
        reached = 0
    else:
        reached = tl.sum((keys >= 0).to(tl.int32), axis=0)
        threshold = tl.where(reached >= K, 0, _LOWEST_KEY)
        step = tl.full([], 1 << 30, tl.int32)
        while (step > 0) & (reached != K):  # any number that just K keys reach will do
            count = tl.sum((keys >= threshold + step).to(tl.int32), axis=0)
            threshold = tl.where(count >= K, threshold + step, threshold)
            reached = tl.where(count >= K, count, reached)
            step = step >> 1
    kept = keys >= threshold
    if reached != K:
        is_equal = keys == threshold
        wanted = K - tl.sum((keys > threshold).to(tl.int32), axis=0)
        kept = (keys > threshold) | (is_equal & (tl.cumsum(is_equal.to(tl.int32), axis=0) <= wanted))
    return kept, tl.cumsum(kept.to(tl.int32), axis=0) - 1


@triton.jit
def _candidates_kernel(
    # pointers
    logits_ptr,
    parameters_ptr,
    history_ptr,
    keys_ptr,
    ids_ptr,
    tops_ptr,
    sums_ptr,
    # sizes
    vocab_size,
    history_len,
    # strides
    logits_stride,
    history_stride,
    # meta
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    HISTORY: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    cell = row * tl.num_programs(0) + chunk
    parameters_ptr += row * _NUM_PARAMETERS
    logits_ptr += row.to(tl.int64) * logits_stride
    first = chunk * CHUNK
    index = first + tl.arange(0, CHUNK)
    inside = index < vocab_size
    x = tl.load(logits_ptr + index, mask=inside, other=float("-inf"))

    # ---- the sum of exp, NaN if a logit is
    top = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    tl.store(tops_ptr + cell, top)
    tl.store(sums_ptr + cell, total)

    # ---- penalties: of the ids of the history that lie in this chunk, one after the other
    repeat = tl.load(parameters_ptr + _REPEAT)
    presence = tl.load(parameters_ptr + _PRESENCE)
    frequency = tl.load(parameters_ptr + _FREQUENCY)
    if (repeat != 1.0) | (presence != 0.0) | (frequency != 0.0):
        place = tl.arange(0, HISTORY)
        history = tl.load(history_ptr + row * history_stride + place, mask=place < history_len, other=-1)
        is_here = (history >= first) & (history < tl.minimum(first + CHUNK, vocab_size))
        left = tl.where(is_here, history, _NO_ID)
        token = tl.min(left, axis=0)
        while token < _NO_ID:
            count = tl.sum((history == token).to(tl.int32), axis=0).to(tl.float64)
            logit = tl.load(logits_ptr + token).to(tl.float64)
            logit = tl.where(logit > 0.0, logit / repeat, logit * repeat)
            x = tl.where(index == token, (logit - count * frequency - presence).to(tl.float32), x)
            left = tl.where(left == token, _NO_ID, left)
            token = tl.min(left, axis=0)

    keys = tl.where(inside, _key(x), _LOWEST_KEY)
    kept, place = _largest(keys, K)
    tl.store(keys_ptr + cell * K + place, keys, mask=kept)
    tl.store(ids_ptr + cell * K + place, index, mask=kept)


@triton.jit
def _choose_kernel(
    # pointers
    logits_ptr,
    parameters_ptr,
    keys_ptr,
    ids_ptr,
    tops_ptr,
    sums_ptr,
    chosen_keys_ptr,
    chosen_ids_ptr,
    out_ptr,
    logit_ptr,
    logsumexp_ptr,
    candidate_ids_ptr,
    candidates_ptr,
    # sizes
    num_chunks,
    # strides
    logits_stride,
    # meta
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLICE: tl.constexpr,
):
    row = tl.program_id(0)
    parameters_ptr += row * _NUM_PARAMETERS
    chosen_keys_ptr += row * K
    chosen_ids_ptr += row * K
    candidates_ptr += row * K
    candidate_ids_ptr += row * K

    chunk = tl.arange(0, CHUNKS)
    at = row * num_chunks + chunk
    tops = tl.load(tops_ptr + at, mask=chunk < num_chunks, other=float("-inf"))
    sums = tl.load(sums_ptr + at, mask=chunk < num_chunks, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    logsumexp = top + tl.log(total)

    # ---- the largest K, in order of ids
    place = tl.arange(0, BLOCK)
    from_ptr = row * num_chunks * K + place
    keys = tl.load(keys_ptr + from_ptr, mask=place < num_chunks * K, other=_LOWEST_KEY)
    ids = tl.load(ids_ptr + from_ptr, mask=place < num_chunks * K, other=0)
    kept, to = _largest(keys, K)
    tl.store(chosen_keys_ptr + to, keys, mask=kept)
    tl.store(chosen_ids_ptr + to, ids, mask=kept)
    tl.debug_barrier()

    # ---- their ranks, and sorted by these
    index = tl.arange(0, K)
    key = tl.load(chosen_keys_ptr + index)
    token = tl.load(chosen_ids_ptr + index)
    rank = tl.zeros([K], tl.int32)
    for start in range(0, K, SLICE):
        other = start + tl.arange(0, SLICE)
        theirs = tl.load(chosen_keys_ptr + other)[None, :]
        is_before = (theirs > key[:, None]) | ((theirs == key[:, None]) & (other[None, :] < index[:, None]))
        rank += tl.sum(is_before.to(tl.int32), axis=1)
    is_known = key > _LOWEST_KEY
    tl.store(candidates_ptr + rank, tl.where(is_known, _value(key), float("-inf")))
    tl.store(candidate_ids_ptr + rank, tl.where(is_known, token, -1))
    tl.debug_barrier()
    x = tl.load(candidates_ptr + index).to(tl.float64)
    largest = tl.max(x, axis=0)

    # ---- how many of them, most probable first, the chain leaves
    temperature = tl.load(parameters_ptr + _TEMPERATURE)
    top_k = tl.load(parameters_ptr + _TOP_K)
    top_p = tl.load(parameters_ptr + _TOP_P)
    min_p = tl.load(parameters_ptr + _MIN_P)
    is_greedy = temperature <= 0.0
    num_left = tl.where(is_greedy, 1, tl.minimum(top_k, K).to(tl.int32))
    weight = tl.where(index < num_left, tl.exp(x - largest), 0.0)
    share = tl.cumsum(weight / tl.sum(weight, axis=0), axis=0)
    num_below = tl.sum(((share < top_p) & (index < num_left)).to(tl.int32), axis=0)
    num_left = tl.where(top_p < 1.0, tl.minimum(num_left, num_below + 1), num_left)
    lowest = largest + tl.log(tl.where(min_p > 0.0, min_p, 1.0))
    num_above = tl.sum(((x >= lowest) & (index < num_left)).to(tl.int32), axis=0)
    num_left = tl.where(min_p > 0.0, tl.maximum(num_above, 1), num_left)

    # ---- the draw, in order of ids
    hotness = tl.where(is_greedy, 1.0, temperature)
    is_left = (rank < num_left) & is_known
    weight = tl.where(is_left, tl.exp((_value(key).to(tl.float64) - largest) / hotness), 0.0)
    cumulative = tl.cumsum(weight, axis=0)
    reached = tl.load(parameters_ptr + _UNIFORM) * tl.max(cumulative, axis=0)
    found = tl.min(tl.where((cumulative > reached) & (weight > 0.0), token, _NO_ID), axis=0)
    last = tl.max(tl.where(weight > 0.0, token, 0), axis=0)
    found = tl.where(found == _NO_ID, last, found)

    is_finite = (logsumexp - logsumexp == 0.0) & (largest - largest == 0.0)
    found = tl.where(is_finite, found, _REJECTED)
    logit = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + tl.maximum(found, 0))
    tl.store(out_ptr + row, found)
    tl.store(logit_ptr + row, logit)
    tl.store(logsumexp_ptr + row, logsumexp)


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What one launch found for each row.

    ids            [B] i32      REJECTED (the host raises sample_ref.reject), or the token
    logits         [B] f32      of the token, as the model computed it
    logsumexp      [B] f32      of all logits as the model computed them; logprob = logit - logsumexp
    candidates     [B, K] f32   the largest logits after penalties, largest first; minus infinity past V
    candidate_ids  [B, K] i32   theirs, lower ids first among equals; -1 past V
    """

    ids: torch.Tensor
    logits: torch.Tensor
    logsumexp: torch.Tensor
    candidates: torch.Tensor
    candidate_ids: torch.Tensor

    @classmethod
    def empty(cls, rows: int, num_candidates: int, device: str) -> "Sampled":
        """Return memory for the results of ``rows`` rows."""
        return cls(
            torch.empty(rows, dtype=torch.int32, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
            torch.empty((rows, num_candidates), dtype=torch.float32, device=device),
            torch.empty((rows, num_candidates), dtype=torch.int32, device=device),
        )


def workspace_len(rows: int, vocab_size: int, num_candidates: int) -> int:
    """Return how many i32 ``sample_into`` needs as workspace."""
    chunks = ceil_div(vocab_size, CHUNKS[num_candidates])
    return 2 * rows * (chunks * num_candidates + chunks + num_candidates)


def _check_rows(
    logits: torch.Tensor,
    parameters: torch.Tensor,
    history: torch.Tensor,
    num_candidates: int,
    out: Sampled,
    workspace: torch.Tensor,
) -> int:
    """Return the chunks of a row; raise ValueError unless the arguments fit ``sample_into``."""
    expect("logits", logits, "float32", ("B", "V"))
    rows, vocab_size = logits.shape
    expect("parameters", parameters, "float64", (rows, NUM_PARAMETERS))
    expect("history", history, "int32", (rows, MAX_HISTORY))
    if num_candidates not in CHUNKS:
        raise ValueError(f"num_candidates must be one of {sorted(CHUNKS)}, got {num_candidates}")
    chunk = CHUNKS[num_candidates]
    chunks = ceil_div(vocab_size, chunk)
    if not 1 <= chunks * num_candidates <= MAX_CANDIDATES_IN:
        most = MAX_CANDIDATES_IN // num_candidates * chunk
        raise ValueError(f"logits must hold 1 to {most} values a row, got {vocab_size}")
    length = workspace_len(rows, vocab_size, num_candidates)
    expect("workspace", workspace, "int32", ("length",))
    if workspace.shape[0] < length:
        raise ValueError(f"workspace must hold {length} values, got {workspace.shape[0]}")
    expect("out", out.candidates, "float32", (rows, num_candidates))
    return chunks


def sample_into(
    logits: torch.Tensor,
    parameters: torch.Tensor,
    history: torch.Tensor,
    num_candidates: int,
    *,
    out: Sampled,
    workspace: torch.Tensor,
) -> Sampled:
    """Choose the next id of each row as sample_ref does, and find what logprobs need: ``out``.

    logits          [B, V] f32           any stride between rows
    parameters      [B, 8] f64           rows of fill_row
    history         [B, MAX_HISTORY] i32 rows of fill_row
    num_candidates  1, 64 or 256         at least candidates_needed of every row
    workspace       i32                  of workspace_len

    Safe under graph capture.
    Raises ValueError if a shape or type differs, or V is too large.
    """
    chunks = _check_rows(logits, parameters, history, num_candidates, out, workspace)
    rows, vocab_size = logits.shape
    if not rows:
        return out
    sizes = [rows * chunks * num_candidates] * 2 + [rows * chunks] * 2 + [rows * num_candidates] * 2
    keys, ids, tops, sums, chosen_keys, chosen_ids = torch.split(workspace[: sum(sizes)], sizes)
    tops, sums = tops.view(torch.float32), sums.view(torch.float32)
    _candidates_kernel[(chunks, rows)](
        logits, parameters, history, keys, ids, tops, sums, vocab_size, MAX_HISTORY,
        logits.stride(0), history.stride(0),
        K=num_candidates, CHUNK=CHUNKS[num_candidates], HISTORY=MAX_HISTORY, num_warps=8,
    )  # fmt: skip
    block = power_of_two(chunks * num_candidates)
    _choose_kernel[(rows,)](
        logits, parameters, keys, ids, tops, sums, chosen_keys, chosen_ids,
        out.ids, out.logits, out.logsumexp, out.candidate_ids, out.candidates,
        chunks, logits.stride(0),
        K=num_candidates, BLOCK=block, CHUNKS=power_of_two(chunks), SLICE=min(num_candidates, 32),
        num_warps=8 if block <= 8192 else 16,
    )  # fmt: skip
    return out


def sample(logits: torch.Tensor, params: SampleParams, history: NDArray[np.int32], uniform: float) -> int:
    """Return the id of the next token by logits [V] on the card; see sample_ref. Waits for it.

    Raises as sample_ref does, and ValueError for parameters that ``sample_rows.supports`` refuses.
    """
    check(logits, params, history, uniform)
    if not supports(params):
        raise ValueError(f"top_k must lie in 1 to {max(CHUNKS)} and typical_p be off, got {params}")
    vocab_size, count, device = logits.shape[0], candidates_needed(params), str(logits.device)
    parameters, last = np.empty((1, NUM_PARAMETERS)), np.empty((1, MAX_HISTORY), np.int32)
    fill_row(parameters[0], last[0], params, history, uniform, vocab_size)
    sampled = sample_into(
        logits[None],
        torch.from_numpy(parameters).to(device),
        torch.from_numpy(last).to(device),
        count,
        out=Sampled.empty(1, count, device),
        workspace=torch.empty(workspace_len(1, vocab_size, count), dtype=torch.int32, device=device),
    )
    found = int(sampled.ids)
    if found == REJECTED:
        raise reject(float(logits.max()))
    return found
