"""latent_store on a GPU: a program a row."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect, power_of_two


@triton.jit
def _latent_store_kernel(
    # pointers
    x_ptr, pages_ptr, kv_index_ptr,
    # sizes
    C,
    # strides
    x_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.load(kv_index_ptr + row).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = (column < C) & (index >= 0)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(pages_ptr + index * C + column, x.to(pages_ptr.dtype.element_ty), mask=mask)


def latent_store(x: torch.Tensor, pages: torch.Tensor, kv_index: torch.Tensor, pool: object = None) -> None:
    """Write each row to its place in the pages; see latent_store_ref.

    x         [T, C] f32 or bf16             any stride between rows
    pages     [P, page_size, C] f16 or f32   contiguous
    kv_index  [T] i32                        negative: not stored

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "C"))
    tokens, channels = x.shape
    check_pages(pages, channels)
    expect("kv_index", kv_index, "int32", (tokens,))
    if tokens:
        _latent_store_kernel[(tokens,)](
            x, pages, kv_index, channels, x.stride(0), BLOCK=power_of_two(channels), num_warps=4
        )
