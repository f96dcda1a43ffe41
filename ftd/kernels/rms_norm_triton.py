"""rms_norm on a GPU; ``rms_norm_into`` also does the addition that comes before it in a decoder layer.

x += add_scale * add        (x is the residual stream, f32; only if ``add`` is given)
out = x / sqrt(mean(x^2) + eps) * weight
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.early_triton import early
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# One program holds whole rows in registers: 32768 values are 32 for each of 1024 threads.
MAX_WIDTH = 32768
# A tile of short rows (heads) that keeps 4 warps busy with 16 values a thread.
TILE = 2048

FLOATS = "float32 bfloat16 float16"


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    # pointers
    x_ptr,
    weight_ptr,
    out_ptr,
    add_ptr,
    # sizes
    num_rows,
    num_heads,
    width,
    eps,
    add_scale,
    # strides
    x_stride_t,
    x_stride_h,
    out_stride_t,
    out_stride_h,
    add_stride_t,
    add_stride_h,
    # meta
    HAS_ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    # ---- program ids: ROWS rows, each a head of a token
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < num_rows)[:, None] & (column < width)[None, :]
    token = (row // num_heads).to(tl.int64)
    head = row % num_heads

    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    # ---- the sum, then the norm of it
    x_at = x_ptr + (token * x_stride_t + head * x_stride_h)[:, None] + column[None, :]
    x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    if HAS_ADD:
        add_at = add_ptr + (token * add_stride_t + head * add_stride_h)[:, None] + column[None, :]
        x += add_scale * tl.load(add_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(x_at, x, mask=mask)
    factor = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps)
    y = x * factor[:, None] * weight[None, :]

    # ---- store
    out_at = out_ptr + (token * out_stride_t + head * out_stride_h)[:, None] + column[None, :]
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=mask)


def _head_stride(x: torch.Tensor) -> int:
    return int(x.stride(1)) if x.dim() == 3 else 0


def rms_norm_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    out: torch.Tensor,
    add: torch.Tensor | None = None,
    add_scale: float = 1.0,
) -> torch.Tensor:
    """Scale each row to unit root-mean-square, then by ``weight``; write that to ``out`` and return it.

    x       [T, D] or [T, H, D] f32 or bf16   any stride but the last; changed in place if ``add`` is given
    weight  [D] f32
    out     like x, of either type            may be x
    add     like x, of either type            added to x first, times ``add_scale``

    Safe under graph capture.
    Raises ValueError if a shape or dtype differs, eps < 0 or D > 32768.
    """
    expect("x", x, FLOATS, ("T", "D") if x.dim() != 3 else ("T", "H", "D"))
    width = int(x.shape[-1])
    expect("weight", weight, "float32", (width,))
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    if width > MAX_WIDTH:
        raise ValueError(f"rows must have at most {MAX_WIDTH} values, got {width}")
    added = x if add is None else add
    for name, tensor in (("out", out), ("add", added)):
        expect(name, tensor, FLOATS, tuple(x.shape))
    heads = int(x.shape[1]) if x.dim() == 3 else 1
    num_rows = int(x.shape[0]) * heads
    if not num_rows or not width:
        return out
    block = power_of_two(width)
    rows = max(1, TILE // block) if num_rows > 1 else 1
    _rms_norm_kernel[(ceil_div(num_rows, rows),)](
        x,
        weight,
        out,
        added,
        num_rows,
        heads,
        width,
        eps,
        add_scale,
        x.stride(0),
        _head_stride(x),
        out.stride(0),
        _head_stride(out),
        added.stride(0),
        _head_stride(added),
        HAS_ADD=add is not None,
        ROWS=rows,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
        **early(x),
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, pool: object = None) -> torch.Tensor:
    """Return the normalised rows of x, of its type; see rms_norm_ref. x [T, D] or [T, H, D]."""
    return rms_norm_into(x, weight, eps, out=torch.empty_like(x))
