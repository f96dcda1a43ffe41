"""Run by test_compile_triton: compiles what recurrent, latent and encoder layers launch for real shapes."""

import torch
import triton_compiler

from ftd.kernels.gated_delta_triton import gated_delta

# A thread's registers in memory that cost nothing to speak of.
FEW_BYTES = 32


def delta(key_heads: int, heads: int, channels: int, rows: torch.dtype) -> None:
    """Compile the delta rule of few and of many tokens."""
    qkv = torch.zeros((128, (2 * key_heads + heads) * channels), dtype=rows)
    rates, state = torch.zeros((128, heads)), torch.zeros((2, heads, channels, channels))
    places = [torch.tensor(each, dtype=torch.int32) for each in ([0, 128], [0] * 128, [0])]
    gated_delta(qkv, rates, rates, rates[0], rates[0], state, key_heads, *places)


def main() -> None:
    """Compile; print a line a kernel that keeps more than a few registers in memory."""
    delta(16, 32, 128, torch.bfloat16)
    for name, (registers, stack) in triton_compiler.compiled.items():
        if stack > FEW_BYTES:
            print(f"{stack} bytes, {registers} registers: {name}")


if __name__ == "__main__":
    main()
