"""gated_delta on a GPU: one warp holds some columns of a head's state and goes through a sequence's tokens.

Columns of the state do not depend on each other, so 32 heads of 128 columns are 512 programs; what the next
token needs is loaded while this one is computed. A single token is bound by reading and writing the state.
Where a sequence has many tokens in a step they go in chunks: ``gated_chunk_triton``.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.gated_chunk_triton import MANY_TOKENS, ChunkWorkspace, chunk_workspace, chunked
from ftd.kernels.gated_delta_ref import NORM_EPS, check_weights
from ftd.kernels.gated_math_triton import sigmoid, softplus
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Columns of a program: 8 of 128 rows are 32 values for each thread of a warp.
BLOCK_VALUES = 8


@triton.jit
def load_token(
    qkv, a, b, token, is_token, key, value, value_head, q_first, k_first, v_first, Ck, Cv,
    qkv_stride, a_stride, b_stride,
):  # fmt: skip
    """Return a token's query and key as they are, its value, and its inputs of forgetting and correcting."""
    row = qkv + token * qkv_stride
    q = tl.load(row + q_first + key, mask=is_token & (key < Ck), other=0.0).to(tl.float32)
    k = tl.load(row + k_first + key, mask=is_token & (key < Ck), other=0.0).to(tl.float32)
    v = tl.load(row + v_first + value, mask=is_token & (value < Cv), other=0.0).to(tl.float32)
    forgotten = tl.load(a + token * a_stride + value_head, mask=is_token, other=0.0)
    corrected = tl.load(b + token * b_stride + value_head, mask=is_token, other=0.0)
    return q, k, v, forgotten.to(tl.float32), corrected.to(tl.float32)


@triton.jit
def _gated_delta(
    # pointers
    qkv, a, b, decay, bias, state, q_start, positions, state_index, kv_len, out,
    # sizes
    Hk, Hv, Ck, Cv, q_scale,
    # strides
    qkv_stride, a_stride, b_stride, out_stride,
    # meta
    TILED: tl.constexpr, HAS_LEN: tl.constexpr, EPS: tl.constexpr, MANY: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """All tokens of one sequence that has few, VALUES columns of one value head."""
    # ---- program ids
    sequence, value_head = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(q_start + sequence), tl.load(q_start + sequence + 1)
    if HAS_LEN:
        end = tl.where(tl.load(kv_len + sequence) > 0, end, start)
    if (start >= end) | (end - start >= MANY):
        return
    # ---- pointers
    key = tl.arange(0, KEYS)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    key_head = value_head // (Hv // Hk)
    if TILED:
        key_head = value_head % Hk
    q_first, k_first = key_head * Ck, Hk * Ck + key_head * Ck
    v_first = 2 * Hk * Ck + value_head * Cv
    slot = tl.load(state_index + sequence).to(tl.int64)
    place = state + (slot * Hv + value_head) * Ck * Cv + key[:, None] * Cv + value[None, :]
    inside = (key < Ck)[:, None] & (value < Cv)[None, :]
    is_old = tl.load(positions + start) > 0
    head_decay, head_bias = tl.load(decay + value_head), tl.load(bias + value_head)
    # ---- loop
    matrix = tl.load(place, mask=inside & is_old, other=0.0)
    q, k, v, forgotten, corrected = load_token(
        qkv, a, b, start, start < end, key, value, value_head, q_first, k_first, v_first, Ck, Cv,
        qkv_stride, a_stride, b_stride,
    )  # fmt: skip
    for token in range(start, end):
        following = token + 1
        next_q, next_k, next_v, next_forgotten, next_corrected = load_token(
            qkv, a, b, following, following < end, key, value, value_head,
            q_first, k_first, v_first, Ck, Cv, qkv_stride, a_stride, b_stride,
        )  # fmt: skip
        unit_q = q * (q_scale / tl.sqrt(tl.sum(q * q, axis=0) + EPS))
        unit_k = k * (1.0 / tl.sqrt(tl.sum(k * k, axis=0) + EPS))
        matrix *= tl.exp(head_decay * softplus(forgotten + head_bias))
        known = tl.sum(matrix * unit_k[:, None], axis=0)
        matrix += unit_k[:, None] * (sigmoid(corrected) * (v - known))[None, :]
        result = tl.sum(matrix * unit_q[:, None], axis=0)
        target = out + token * out_stride + value_head * Cv + value
        tl.store(target, result, mask=value < Cv)
        q, k, v, forgotten, corrected = next_q, next_k, next_v, next_forgotten, next_corrected
    # ---- store
    tl.store(place, matrix, mask=inside)


def gated_delta_into(
    qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    decay: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    key_heads: int,
    q_start: torch.Tensor,
    positions: torch.Tensor,
    state_index: torch.Tensor,
    tiled: bool = False,
    *,
    out: torch.Tensor,
    workspace: ChunkWorkspace,
    kv_len: torch.Tensor | None = None,
) -> torch.Tensor:
    """Read and correct the state of each value head; write what is read to ``out`` and return it.

    qkv, a, b, out  f32 or bf16; state [slots, Hv, Ck, Cv] f32, written in place, sums in f32
    kv_len     [B] i32   a sequence where it is 0 is padding: its results and its slot stay as they are
    workspace            of chunk_workspace for at least these tokens and sequences

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("qkv", qkv, "float32 bfloat16", ("T", "channels"))
    tokens, width = qkv.shape
    value_heads, key_channels, value_channels = check_weights(width, key_heads, decay, bias, state)
    expect("a", a, "float32 bfloat16", (tokens, value_heads))
    expect("b", b, "float32 bfloat16", (tokens, value_heads))
    expect("q_start", q_start, "int32", ("B + 1",))
    sequences = q_start.shape[0] - 1
    expect("positions", positions, "int32", (tokens,))
    expect("state_index", state_index, "int32", (sequences,))
    if kv_len is not None:
        expect("kv_len", kv_len, "int32", (sequences,))
    expect("out", out, "float32 bfloat16", (tokens, value_heads * value_channels))
    if not tokens or not sequences:
        return out
    _gated_delta[(sequences, value_heads, ceil_div(value_channels, BLOCK_VALUES))](
        qkv, a, b, decay, bias, state, q_start, positions, state_index, kv_len, out,
        key_heads, value_heads, key_channels, value_channels, key_channels**-0.5,
        qkv.stride(0), a.stride(0), b.stride(0), out.stride(0),
        TILED=tiled, HAS_LEN=kv_len is not None, EPS=NORM_EPS, MANY=MANY_TOKENS,
        KEYS=power_of_two(key_channels), VALUES=BLOCK_VALUES, num_warps=1,
    )  # fmt: skip
    if tokens >= MANY_TOKENS:
        chunked(
            qkv, a, b, decay, bias, state, key_heads, q_start, positions, state_index, tiled, kv_len, out,
            workspace,
        )  # fmt: skip
    return out


def gated_delta(
    qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    decay: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    key_heads: int,
    q_start: torch.Tensor,
    positions: torch.Tensor,
    state_index: torch.Tensor,
    tiled: bool = False,
    pool: object = None,
) -> torch.Tensor:
    """Return what each value head reads of its state [T, Hv * Cv], of qkv's type; see gated_delta_ref."""
    expect("qkv", qkv, "float32 bfloat16", ("T", "channels"))
    heads, _, channels = check_weights(qkv.shape[1], key_heads, decay, bias, state)
    tokens, sequences = qkv.shape[0], state_index.shape[0]
    return gated_delta_into(
        qkv, a, b, decay, bias, state, key_heads, q_start, positions, state_index, tiled,
        out=qkv.new_empty((tokens, heads * channels)),
        workspace=chunk_workspace(tokens, sequences, tuple(state.shape), qkv.device),
    )  # fmt: skip
