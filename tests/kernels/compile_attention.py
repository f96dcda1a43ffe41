"""Run by test_compile_triton: compiles what attention, its inputs and sampling launch for real shapes."""

import torch
import triton_compiler

from ftd.kernels import attention_decode_triton, attention_merge_triton, rms_norm_triton
from ftd.kernels.add_triton import add
from ftd.kernels.attention_token_triton import NewTokens
from ftd.kernels.attention_triton import attention, attention_decode
from ftd.kernels.kv_store_triton import kv_store
from ftd.kernels.qkv_post_triton import qkv_post
from ftd.kernels.rms_norm_triton import rms_norm, rms_norm_into
from ftd.kernels.rope_triton import rope
from ftd.kernels.sample_rows import MAX_HISTORY, NUM_PARAMETERS
from ftd.kernels.sample_triton import Sampled, sample_into, workspace_len
from ftd.kernels.select_logit_rows_triton import select_logit_rows
from ftd.kernels.swiglu_triton import swiglu

# A thread's registers in memory that cost nothing to speak of.
FEW_BYTES = 32


def attention_of(heads: int, groups: int, channels: int, page_type: torch.dtype, window: int = 0) -> None:
    """Compile decode, prefill and their inputs."""
    k = torch.zeros((4, groups, channels, 32), dtype=page_type)
    v = torch.zeros((4, groups, 32, channels), dtype=page_type)
    rows = torch.bfloat16 if page_type == torch.float16 else torch.float32
    q = torch.zeros((70, heads * channels), dtype=rows)
    table, length = torch.zeros((2, 1024), dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    sinks = torch.zeros(heads) if window else None
    attention_decode(q[:2], k, v, table, length, heads, 0.1, window, sinks)
    if channels in (64, 128, 256):
        k_row, places = q[:2, : groups * channels], length
        weights = torch.ones(channels), torch.ones(channels)
        new = NewTokens(k_row, k_row, places, places, torch.ones(channels // 2), 1.0, *weights)
        attention_decode(q[:2], k, v, table, length, heads, 0.1, window, sinks, new=new)
    starts = torch.tensor([0, 70, 70], dtype=torch.int32)
    positions = torch.arange(70, dtype=torch.int32)
    for keys in (70, 30000):
        heads_of = q.unflatten(1, (heads, channels))
        kv_len = torch.tensor([keys, 0], dtype=torch.int32)
        attention(heads_of, k, v, table, starts, kv_len, positions, 0.1, window, sinks)
    side = torch.zeros((70, groups * channels), dtype=rows)
    norm = torch.ones(channels)
    for tokens in (1, 70):
        parts = (q[:tokens], side[:tokens], side[:tokens], k, v, positions[:tokens], positions[:tokens])
        qkv_post(*parts, torch.ones(channels // 2), 1.0, norm, norm)


def main() -> None:
    """Compile; print a line a kernel that keeps more than a few registers in memory."""
    for module in (attention_decode_triton, attention_merge_triton, rms_norm_triton):
        module.early = lambda _: {"EARLY": True, "launch_pdl": True}
    attention_of(32, 8, 128, torch.float16)
    attention_of(32, 4, 64, torch.float16, window=128)
    attention_of(8, 4, 256, torch.float16)
    attention_of(8, 2, 80, torch.float32)
    attention_of(8, 2, 256, torch.float32)
    x, weight = torch.zeros((3, 4096)), torch.ones(4096)
    rms_norm_into(x, weight, add=x.to(torch.bfloat16), out=x.to(torch.bfloat16))
    rms_norm(x.unflatten(1, (32, 128)), weight[:128])
    add(x, x)
    swiglu(x, x)
    select_logit_rows(x, torch.zeros(2, dtype=torch.int32))
    heads, places = x.unflatten(1, (32, 128)), torch.zeros(3, dtype=torch.int32)
    rope(heads, places, torch.ones(32))
    kv_store(heads, heads, torch.zeros(1, 32, 128, 32), torch.zeros(1, 32, 32, 128), places)
    for count in (1, 64, 256):
        parameters = torch.zeros((2, NUM_PARAMETERS), dtype=torch.float64)
        history = torch.zeros((2, MAX_HISTORY), dtype=torch.int32)
        out = Sampled.empty(2, count, "cpu")
        workspace = torch.zeros(workspace_len(2, 151_936, count), dtype=torch.int32)
        logits = torch.zeros((2, 151_936))
        sample_into(logits, parameters, history, count, out=out, workspace=workspace)
    for name, (registers, stack) in triton_compiler.compiled.items():
        if stack > FEW_BYTES:
            print(f"{stack} bytes, {registers} registers: {name}")


if __name__ == "__main__":
    main()
