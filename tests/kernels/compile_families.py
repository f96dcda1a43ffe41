"""Run by test_compile_triton: compiles what recurrent, latent and encoder layers launch for real shapes."""

import numpy as np
import torch
import triton_compiler

from ftd.kernels.attention_triton import prefill_blocks
from ftd.kernels.causal_conv_triton import causal_conv_into
from ftd.kernels.gated_chunk_triton import chunk_workspace
from ftd.kernels.gated_delta_triton import gated_delta, gated_delta_into
from ftd.kernels.gelu_triton import gelu
from ftd.kernels.head_linear_triton import head_linear_into
from ftd.kernels.index_select_triton import index_select
from ftd.kernels.latent_attention_triton import (
    latent_attention_decode,
    latent_attention_prefill,
    spread,
)
from ftd.kernels.latent_norm_triton import latent_norm
from ftd.kernels.latent_store_triton import latent_store
from ftd.kernels.layer_norm_triton import layer_norm
from ftd.kernels.position_embedding_triton import last_positions, position_embedding
from ftd.kernels.sigmoid_gate_triton import sigmoid_gate

# A thread's registers in memory that cost nothing to speak of.
FEW_BYTES = 32
# Three products of tf32 each, and an accumulator of 64 x 512, do not fit registers whole
MOST_BYTES = {"_prepare": 640, "_walk": 64, "_latent_attention_kernel": 256}


def delta(key_heads: int, heads: int, channels: int, rows: torch.dtype) -> None:
    """Compile the delta rule of few and of many tokens."""
    qkv = torch.zeros((128, (2 * key_heads + heads) * channels), dtype=rows)
    rates, state = torch.zeros((128, heads)), torch.zeros((2, heads, channels, channels))
    places = [torch.tensor(each, dtype=torch.int32) for each in ([0, 128], [0] * 128, [0])]
    gated_delta(qkv, rates, rates, rates[0], rates[0], state, key_heads, *places)


def recurrent() -> None:
    """Compile the layers of Qwen3-Next."""
    places = [torch.zeros(count, dtype=torch.int32) for count in (3, 40, 2, 2)]
    for tokens in (2, 40):
        qkv = torch.zeros((tokens, 8192), dtype=torch.bfloat16)
        starts, positions, slots, kv_len = places[0], places[1][:tokens], places[2], places[3]
        conv = torch.zeros((4, 3, 8192))
        step = (starts, positions, slots)
        causal_conv_into(qkv, torch.zeros((8192, 4)), conv, *step, out=torch.empty_like(qkv), kv_len=kv_len)
        rates, head = torch.zeros((tokens, 32)), torch.zeros(32)
        state = torch.zeros((4, 32, 128, 128))
        workspace = chunk_workspace(tokens, 2, tuple(state.shape), "cpu")
        arrays = (qkv, rates, rates, head, head, state, 16)
        gated_delta_into(*arrays, *step, out=qkv[:, 4096:], workspace=workspace, kv_len=kv_len)
    sigmoid_gate(qkv, qkv)


def latent(heads: int, rows: torch.dtype, pages: torch.dtype) -> None:
    """Compile what latent attention launches, 512 channels of latent and 64 that rotate; with an indexer."""
    places = [torch.tensor(each, dtype=torch.int32) for each in ([0, 40], [40], [0] * 40)]
    table, kept = torch.zeros((1, 128), dtype=torch.int32), torch.zeros((4, 32, 576), dtype=pages)
    q, out = torch.zeros((40, heads * 576), dtype=rows), torch.zeros((40, heads * 512), dtype=rows)
    blocks = torch.from_numpy(
        prefill_blocks(np.array([0, 40], np.int32), np.array([40], np.int32), spread(heads, kept))
    )
    index = torch.zeros((4, 32, 128), dtype=pages)
    queries, weights = torch.zeros((40, 64, 128), dtype=rows), torch.zeros((40, 64), dtype=rows)
    selected = index_select(queries, weights, index, table, *places, 2048)
    for chosen in (None, selected):
        one = None if chosen is None else chosen[:1]
        latent_attention_decode(q[:1], kept, table, places[1], heads, 512, 0.1, one, out=out[:1])
        latent_attention_prefill(
            q, kept, table, places[0], places[2], blocks, heads, 512, 0.1, chosen, out=out
        )
    dtype = torch.float32 if pages == torch.float32 else torch.bfloat16
    for tokens in (1, 40):
        into, back = torch.zeros((heads, 512, 128), dtype=dtype), torch.zeros((heads, 128, 512), dtype=dtype)
        head_linear_into(q[:tokens, : heads * 192], into, 64, True, out=q[:tokens])
        head_linear_into(out[:tokens], back, out=out[:tokens, : heads * 128])
    row = latent_norm(q[:, :576], torch.ones(512), 1e-6, True)
    latent_store(row, kept, places[2])


def encoder() -> None:
    """Compile what encoders launch beside other families' kernels."""
    x, places = torch.zeros((3, 768)), torch.zeros(3, dtype=torch.int32)
    layer_norm(x, x[0], x[0])
    gelu(x.to(torch.bfloat16))
    position_embedding(x, places, x)
    last_positions(torch.zeros(3, dtype=torch.int32), places[:2], out=places)


def main() -> None:
    """Compile; print a line a kernel that keeps more than a few registers in memory."""
    delta(16, 32, 128, torch.bfloat16)
    recurrent()
    latent(128, torch.bfloat16, torch.float16)
    latent(16, torch.bfloat16, torch.float16)
    latent(16, torch.float32, torch.float32)
    encoder()
    for name, (registers, stack) in triton_compiler.compiled.items():
        if stack > MOST_BYTES.get(name.split(maxsplit=1)[0].rsplit(".", 1)[1], FEW_BYTES):
            print(f"{stack} bytes, {registers} registers: {name}")


if __name__ == "__main__":
    main()
