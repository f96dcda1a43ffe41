"""The gated delta rule on a GPU for many tokens: chunks of them as products of matrices (the WY form).

With S the state before a chunk, G the logarithm of what a token's chunk has kept so far, and rows for tokens:

    A = rate * exp(G_i - G_j) * k_i.k_j  below the diagonal          T = (I + A)^-1
    U = T (rate * v) - T (rate * exp(G) * k) S                       corrections
    out = exp(G) * q S + P U,  P = exp(G_i - G_j) * q_i.k_j  on and below the diagonal
    S = exp(G_end) * S + (exp(G_end - G) * k)^T U

``prepare`` finds T and what does not depend on S, all chunks at once; ``walk`` goes from chunk to chunk with
S in registers. Chunks begin at multiples of CHUNK of a sequence's positions, wherever a step begins: steps
that end there give the same bits as one long step. T is found by halves, [[T1, 0], [-T2 L T1, T2]], which
cancels nothing however much alike the keys are. Products are of f32, in three parts each on tensor cores. G
is a sum in f64: it reaches hundreds where much is forgotten, and of its differences those near 0 count.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.gated_delta_ref import NORM_EPS
from ftd.kernels.gated_math_triton import sigmoid, softplus
from ftd.kernels.shapes import ceil_div, power_of_two

# Tokens of a chunk; T costs its cube, the walk has fewer steps.
CHUNK = 64
# Shorter parts of a sequence go token by token: a chunk costs as much as some tens of tokens.
MANY_TOKENS = 17
# One kernel for up to so many sequences: nobody waits for a compiler because another prompt came.
MIN_SEQUENCES = 16
# Columns of the state that a program of the walk holds: 32 heads of 128 are 256 programs.
BLOCK_VALUES = 16
PREPARE_WARPS, WALK_WARPS, PREPARE_STAGES = 4, 4, 1
# Key channels that a product of the walk takes at once: three parts of more do not fit registers.
BLOCK_KEYS = 64
# Three products of tf32: within 5e-7 of the largest result on an H200. Six of bf16 (bf16x6) should be closer,
# but Triton 3.6 makes wrong code of them there: results off by their own size, illegal addresses.
DOT = "tf32x3"


@triton.jit
def chunks_of(q_start, positions, kv_len, B, MANY: tl.constexpr, HAS_LEN: tl.constexpr,
              CHUNK: tl.constexpr, SEQUENCES: tl.constexpr):  # fmt: skip
    """Return of each sequence [SEQUENCES]: first token, tokens, place in its first chunk, chunks."""
    every = tl.arange(0, SEQUENCES)
    start = tl.load(q_start + every, mask=every < B, other=0)
    length = tl.load(q_start + 1 + every, mask=every < B, other=0) - start
    if HAS_LEN:
        length = tl.where(tl.load(kv_len + every, mask=every < B, other=0) > 0, length, 0)
    length = tl.where(length >= MANY, length, 0)
    offset = tl.load(positions + start, mask=length > 0, other=0) % CHUNK
    return start, length, offset, tl.where(length > 0, (offset + length + CHUNK - 1) // CHUNK, 0)


@triton.jit
def inverse(lower, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DOT: tl.constexpr):
    """Return (I + lower)^-1 of a matrix [CHUNK, CHUNK] that is zero on and above the diagonal."""
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    pairs = (row // 2 == column // 2) & (row > column)
    found = tl.where(row == column, 1.0, 0.0) - tl.where(pairs, lower, 0.0)
    for level in tl.static_range(1, LEVELS):
        beside = (row >> (level + 1) == column >> (level + 1)) & (row >> level > column >> level)
        part = tl.dot(found, tl.where(beside, lower, 0.0), input_precision=DOT)
        found -= tl.dot(part, found, input_precision=DOT)
    return found


@triton.jit
def scaled_rows(place, key, Ck, inside, factors):
    """Return columns ``key`` of a chunk's rows [CHUNK, keys] in f32, each row times its factor."""
    x = tl.load(place + key[None, :], mask=inside[:, None] & (key < Ck)[None, :], other=0.0)
    return x.to(tl.float32) * factors[:, None]


@triton.jit(do_not_specialize=["B"])
def _prepare(
    # pointers
    qkv, a, b, decay, bias, q_start, positions, kv_len, keys_out, values_out, scores_out, factors_out,
    # sizes
    B, Hk, Hv, Ck, Cv, q_scale,
    # strides
    qkv_stride, a_stride, b_stride,
    # meta
    TILED: tl.constexpr, HAS_LEN: tl.constexpr, EPS: tl.constexpr, MANY: tl.constexpr,
    CHUNK: tl.constexpr, LEVELS: tl.constexpr, KEYS: tl.constexpr, PART: tl.constexpr,
    VALUES: tl.constexpr, BLOCKS: tl.constexpr, SEQUENCES: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head: T k, T v, P and the factors of queries, keys and state."""
    # ---- program ids
    chunk, head = tl.program_id(0), tl.program_id(1)
    starts, lengths, offsets, counts = chunks_of(
        q_start, positions, kv_len, B, MANY, HAS_LEN, CHUNK, SEQUENCES
    )
    before = tl.cumsum(counts, axis=0) - counts
    mine = (before <= chunk) & (chunk < before + counts)
    if tl.sum(mine.to(tl.int32), axis=0) == 0:
        return
    local = tl.sum(tl.where(mine, (chunk - before) * CHUNK - offsets, 0), axis=0)
    start, length = tl.sum(tl.where(mine, starts, 0), axis=0), tl.sum(tl.where(mine, lengths, 0), axis=0)
    # ---- pointers
    row = tl.arange(0, CHUNK)
    first = tl.maximum(local, 0)
    count = tl.minimum(local + CHUNK, length) - first
    inside = row < count
    token = (start + first + row).to(tl.int64)
    key_head = head // (Hv // Hk)
    if TILED:
        key_head = head % Hk
    place = qkv + token[:, None] * qkv_stride
    cell = chunk.to(tl.int64) * Hv + head
    # ---- rates
    forgotten = tl.load(a + token * a_stride + head, mask=inside, other=0.0).to(tl.float32)
    corrected = tl.load(b + token * b_stride + head, mask=inside, other=0.0).to(tl.float32)
    kept = tl.load(decay + head) * softplus(forgotten + tl.load(bias + head))
    rate = tl.where(inside, sigmoid(corrected), 0.0)
    kept = tl.where(inside, kept, 0.0).to(tl.float64)
    total, end = tl.cumsum(kept, axis=0), tl.sum(kept, axis=0)
    fade = tl.exp(tl.minimum((total[:, None] - total[None, :]).to(tl.float32), 0.0))
    until_end = tl.exp(tl.minimum((end - total).to(tl.float32), 0.0))
    since_start = tl.exp(total.to(tl.float32))
    # ---- keys and queries: products of what they are, exact for bf16, then of unit length
    alike, score = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK, CHUNK], tl.float32)
    k_square, q_square = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for part in range(KEYS // PART):
        key = part * PART + tl.arange(0, PART)
        known = inside[:, None] & (key < Ck)[None, :]
        k = tl.load(place + (Hk + key_head) * Ck + key[None, :], mask=known, other=0.0)
        q = tl.load(place + key_head * Ck + key[None, :], mask=known, other=0.0)
        alike = tl.dot(k, tl.trans(k), alike, input_precision=DOT)
        score = tl.dot(q, tl.trans(k), score, input_precision=DOT)
        k, q = k.to(tl.float32), q.to(tl.float32)
        k_square, q_square = k_square + tl.sum(k * k, axis=1), q_square + tl.sum(q * q, axis=1)
    k_factor, q_factor = 1.0 / tl.sqrt(k_square + EPS), q_scale / tl.sqrt(q_square + EPS)
    alike *= fade * k_factor[:, None] * k_factor[None, :]
    solved = inverse(tl.where(row[:, None] > row[None, :], rate[:, None] * alike, 0.0), CHUNK, LEVELS, DOT)
    score *= fade * q_factor[:, None] * k_factor[None, :]
    score = tl.where(row[:, None] >= row[None, :], score, 0.0)
    # ---- store
    square = row[:, None] * CHUNK + row[None, :]
    tl.store(scores_out + cell * CHUNK * CHUNK + square, score)
    factors = factors_out + cell * 3 * CHUNK + row
    tl.store(factors, q_factor * since_start)
    tl.store(factors + CHUNK, tl.where(inside, k_factor * until_end, 0.0))
    tl.store(factors + 2 * CHUNK, tl.zeros([CHUNK], tl.float32) + tl.exp(end.to(tl.float32)))
    weights = rate * since_start * k_factor
    for part in range(KEYS // PART):
        key = part * PART + tl.arange(0, PART)
        k = scaled_rows(place + (Hk + key_head) * Ck, key, Ck, inside, weights)
        target = keys_out + cell * CHUNK * KEYS + row[:, None] * KEYS + key[None, :]
        tl.store(target, tl.dot(solved, k, input_precision=DOT))
    for block in range(BLOCKS):
        value = block * VALUES + tl.arange(0, VALUES)
        at = place + 2 * Hk * Ck + head * Cv + value[None, :]
        v = tl.load(at, mask=inside[:, None] & (value < Cv)[None, :], other=0.0).to(tl.float32)
        corrections = tl.dot(solved, rate[:, None] * v, input_precision=DOT)
        target = values_out + cell * CHUNK * BLOCKS * VALUES + row[:, None] * (BLOCKS * VALUES)
        tl.store(target + value[None, :], corrections)


@triton.jit(do_not_specialize=["B"])
def _walk(
    # pointers
    qkv, keys_in, values_in, scores_in, factors_in, state, q_start, positions, state_index, kv_len, out,
    # sizes
    B, Hk, Hv, Ck, Cv,
    # strides
    qkv_stride, out_stride,
    # meta
    TILED: tl.constexpr, HAS_LEN: tl.constexpr, MANY: tl.constexpr, CHUNK: tl.constexpr,
    KEYS: tl.constexpr, PART: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr,
    SEQUENCES: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """All chunks of one sequence, VALUES columns of one value head."""
    # ---- program ids
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    starts, lengths, offsets, counts = chunks_of(
        q_start, positions, kv_len, B, MANY, HAS_LEN, CHUNK, SEQUENCES
    )
    every = tl.arange(0, SEQUENCES)
    before = tl.sum(tl.where(every < sequence, counts, 0), axis=0)
    mine = every == sequence
    num_chunks = tl.sum(tl.where(mine, counts, 0), axis=0)
    if num_chunks == 0:
        return
    start, length = tl.sum(tl.where(mine, starts, 0), axis=0), tl.sum(tl.where(mine, lengths, 0), axis=0)
    offset = tl.sum(tl.where(mine, offsets, 0), axis=0)
    # ---- pointers
    row, key = tl.arange(0, CHUNK), tl.arange(0, PART)
    value = block * VALUES + tl.arange(0, VALUES)
    key_head = head // (Hv // Hk)
    if TILED:
        key_head = head % Hk
    slot = tl.load(state_index + sequence).to(tl.int64)
    kept_at = state + (slot * Hv + head) * Ck * Cv + key[:, None] * Cv + value[None, :]
    in_low = (key < Ck)[:, None] & (value < Cv)[None, :]
    in_high = (PART + key < Ck)[:, None] & (value < Cv)[None, :]
    is_old = tl.load(positions + start) > 0
    # ---- loop: the state's first PART rows and the others
    low = tl.load(kept_at, mask=in_low & is_old, other=0.0)
    if PART < KEYS:
        high = tl.load(kept_at + PART * Cv, mask=in_high & is_old, other=0.0)
    for chunk in range(num_chunks):
        first = tl.maximum(chunk * CHUNK - offset, 0)
        inside = row < tl.minimum((chunk + 1) * CHUNK - offset, length) - first
        token = (start + first + row).to(tl.int64)
        place = qkv + token[:, None] * qkv_stride + key_head * Ck
        cell = (before + chunk).to(tl.int64) * Hv + head
        keys = keys_in + cell * CHUNK * KEYS + row[:, None] * KEYS + key[None, :]
        factors = factors_in + cell * 3 * CHUNK + row
        q_factor, k_factor = tl.load(factors), tl.load(factors + CHUNK)
        kept = tl.load(factors_in + cell * 3 * CHUNK + 2 * CHUNK)
        corrections = tl.load(values_in + cell * CHUNK * WIDTH + row[:, None] * WIDTH + value[None, :])
        corrections -= tl.dot(tl.load(keys), low, input_precision=DOT)
        q = scaled_rows(place, key, Ck, inside, q_factor)
        result = tl.dot(q, low, input_precision=DOT)
        if PART < KEYS:
            corrections -= tl.dot(tl.load(keys + PART), high, input_precision=DOT)
            q = scaled_rows(place, PART + key, Ck, inside, q_factor)
            result = tl.dot(q, high, result, input_precision=DOT)
        score = tl.load(scores_in + cell * CHUNK * CHUNK + row[:, None] * CHUNK + row[None, :])
        result = tl.dot(score, corrections, result, input_precision=DOT)
        target = out + token[:, None] * out_stride + head * Cv + value[None, :]
        tl.store(target, result, mask=inside[:, None] & (value < Cv)[None, :])
        k = scaled_rows(place + Hk * Ck, key, Ck, inside, k_factor)
        low = tl.dot(tl.trans(k), corrections, low * kept, input_precision=DOT)
        if PART < KEYS:
            k = scaled_rows(place + Hk * Ck, PART + key, Ck, inside, k_factor)
            high = tl.dot(tl.trans(k), corrections, high * kept, input_precision=DOT)
    # ---- store
    tl.store(kept_at, low, mask=in_low)
    if PART < KEYS:
        tl.store(kept_at + PART * Cv, high, mask=in_high)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWorkspace:
    """What ``prepare`` leaves for ``walk``, f32: layers of one stream may share it.

    keys [n, CHUNK, KEYS], values [n, CHUNK, WIDTH], scores [n, CHUNK, CHUNK], factors [n, 3, CHUNK] of
    n = chunks * heads.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scores: torch.Tensor
    factors: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of all four."""
        return 4 * sum(each.numel() for each in (self.keys, self.values, self.scores, self.factors))


def padded(channels: int) -> int:
    """Return channels as a tile has them: a power of two that tensor cores take."""
    return max(16, power_of_two(channels))


def max_chunks(num_tokens: int, num_sequences: int) -> int:
    """Return how many chunks a step may have: a sequence begins and ends within one."""
    return num_tokens // CHUNK + 2 * min(num_sequences, num_tokens // MANY_TOKENS)


def chunk_workspace(
    num_tokens: int, num_sequences: int, state_shape: tuple[int, ...], device: torch.device | str
) -> ChunkWorkspace:
    """Return a workspace for any step within these limits; state_shape is [slots, Hv, Ck, Cv]."""
    _, heads, key_channels, value_channels = state_shape
    cells = max_chunks(num_tokens, num_sequences) * heads
    sizes = (CHUNK * padded(key_channels), CHUNK * padded(value_channels), CHUNK * CHUNK, 3 * CHUNK)
    return ChunkWorkspace(*(torch.empty(cells * n, dtype=torch.float32, device=device) for n in sizes))


def chunked(
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
    tiled: bool,
    kv_len: torch.Tensor | None,
    out: torch.Tensor,
    workspace: ChunkWorkspace,
) -> None:
    """Run the sequences of a step that have MANY_TOKENS or more; checked by ``gated_delta_into``.

    Raises ValueError if ``workspace`` is too small.
    """
    tokens, sequences = qkv.shape[0], state_index.shape[0]
    _, heads, key_channels, value_channels = state.shape
    chunks = max_chunks(tokens, sequences)
    if not chunks:
        return
    if workspace.factors.numel() < chunks * heads * 3 * CHUNK:
        raise ValueError(f"workspace must hold {chunks} chunks of {heads} heads")
    keys, width = padded(key_channels), padded(value_channels)
    values = min(BLOCK_VALUES, width)
    rooms = (workspace.keys, workspace.values, workspace.scores, workspace.factors)
    shared = {
        "TILED": tiled, "HAS_LEN": kv_len is not None, "MANY": MANY_TOKENS, "CHUNK": CHUNK, "KEYS": keys,
        "VALUES": values, "SEQUENCES": max(MIN_SEQUENCES, power_of_two(sequences)), "DOT": DOT,
    }  # fmt: skip
    _prepare[(chunks, heads)](
        qkv, a, b, decay, bias, q_start, positions, kv_len, *rooms,
        sequences, key_heads, heads, key_channels, value_channels, key_channels**-0.5,
        qkv.stride(0), a.stride(0), b.stride(0),
        EPS=NORM_EPS, LEVELS=CHUNK.bit_length() - 1, BLOCKS=width // values, PART=min(keys, BLOCK_KEYS),
        **shared,
        num_warps=PREPARE_WARPS, num_stages=PREPARE_STAGES,
    )  # fmt: skip
    _walk[(ceil_div(value_channels, values), heads, sequences)](
        qkv, *rooms, state, q_start, positions, state_index, kv_len, out,
        sequences, key_heads, heads, key_channels, value_channels, qkv.stride(0), out.stride(0),
        PART=keys if keys <= BLOCK_KEYS else keys // 2, WIDTH=width, **shared,
        num_warps=WALK_WARPS, num_stages=2 if keys <= 2 * BLOCK_KEYS else 1,
    )  # fmt: skip
