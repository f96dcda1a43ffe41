"""Run by test_compile_triton: compiles what dense products launch for weights of real shapes in every format.

With an argument, only the formats that it names, separated by commas.
"""

import sys

import torch
import triton_compiler

from ftd.kernels.dequantize_triton import dequantize
from ftd.kernels.device_matrix import DTYPES, DeviceMatrix
from ftd.kernels.embedding_triton import embedding
from ftd.kernels.gated_matmul_triton import gated_matmul
from ftd.kernels.matmul_triton import Scaled, Scaling, matmul, matmul_into
from ftd.kernels.quant import FORMATS

# A thread's registers in memory that cost nothing to speak of.
FEW_BYTES = 32


def weight_of(name: str, rows: int, columns: int) -> DeviceMatrix:
    """Return a weight of zeros."""
    planes = []
    for plane in FORMATS[name].planes:
        shape = (1, *FORMATS[name].plane_shape(plane, (rows, columns)))
        planes.append(torch.zeros(shape, dtype=DTYPES[plane.dtype]))
    return DeviceMatrix(name, (rows, columns), tuple(planes))


def products_of(name: str) -> None:
    """Compile decode with and without a norm, an activation and parts of K, and prefill."""
    weight = weight_of(name, 4096, 2048)
    for tokens in (1, 8, 16, 64, 65, 257):
        x = torch.zeros((tokens, 2048))
        narrow = x.to(torch.bfloat16)
        matmul_into(narrow, weight, out=torch.zeros((tokens, 4096), dtype=torch.bfloat16))
        if tokens <= 16:
            scaling = Scaling(torch.ones(4096), torch.zeros((tokens, 4096), dtype=torch.bfloat16))
            matmul_into(narrow, weight, out=torch.zeros((tokens, 4096)), add=True, scaling=scaling)
            gated_matmul(narrow, weight, "silu", norm=Scaled(1e-6, 512), out=narrow.new_empty((tokens, 2048)))
        norm = (torch.ones(2048), 1e-6) if tokens <= 16 else None
        gated_matmul(x if norm else narrow, weight, "silu", norm=norm, out=narrow.new_empty((tokens, 2048)))
    for tokens in (1, 65):
        matmul(torch.zeros((tokens, 2048)), weight, None, "f32")
    embedding(torch.zeros(1, dtype=torch.int32), weight)
    dequantize(weight)


def main() -> None:
    """Compile; print a line a kernel that keeps more than a few registers in memory."""
    for name in sys.argv[1].split(",") if len(sys.argv) > 1 else FORMATS:
        products_of(name)
    for kernel, (registers, stack) in triton_compiler.compiled.items():
        if stack > FEW_BYTES:
            print(f"{stack} bytes, {registers} registers: {kernel}")


if __name__ == "__main__":
    main()
