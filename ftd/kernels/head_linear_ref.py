"""head_linear: the definition of a product with a matrix of its own for each head.

It takes queries into the space of latents and mixed latents back to values (multi-head latent attention). A
head of ``x`` may have a tail that is no part of the product and goes on behind it.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.shapes import ArrayLike, expect


def check(
    x: ArrayLike,
    weight: QuantMatrix,
    tail: int,
    interleaved: bool,
    first: int = 0,
    rows: int = 0,
    transposed: bool = False,
) -> tuple[int, int, int]:
    """Return rows in use, N and K; raise ValueError unless the arguments fit ``head_linear``."""
    expect("x", x, "float32", ("T", "H", "K + tail"))
    heads = x.shape[1]
    if tail < 0 or (interleaved and tail % 2):
        raise ValueError(f"tail must be at least 0, even where pairs are sorted, got {tail}")
    if heads < 1 or weight.shape[0] % heads or weight.shape[0] < heads:
        raise ValueError(f"rows of weight must be a multiple of {heads} heads, got {weight.shape[0]}")
    each = weight.shape[0] // heads
    used = rows or each - first
    if first < 0 or used < 1 or first + used > each:
        raise ValueError(f"rows {first} to {first + used} of a head must lie in its {each} rows")
    wide, columns = (weight.shape[1], used) if transposed else (used, weight.shape[1])
    if x.shape[2] != columns + tail:
        raise ValueError(f"a head of x must hold {columns} and {tail} channels, got {list(x.shape)}")
    return used, wide, columns


def sorted_pairs(tail: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return channels 0, 2, 4, … and then 1, 3, 5, … of the last axis."""
    return np.concatenate([tail[..., 0::2], tail[..., 1::2]], axis=-1)


def head_linear(
    x: NDArray[np.float32],
    weight: QuantMatrix,
    tail: int = 0,
    interleaved: bool = False,
    first: int = 0,
    rows: int = 0,
    transposed: bool = False,
    pool: object = None,
) -> NDArray[np.float32]:
    """Multiply each head of ``x`` with its own rows of ``weight``; copy a head's tail behind the product.

    x            [T, H, K + tail] f32
    weight       [H * R, M]       any FTW format; rows h * R to h * R + R - 1 belong to head h
    tail                          channels at the end of a head that are copied
    interleaved                   the tail's channels 0, 2, 4, … come first, then 1, 3, 5, …
    first, rows                   which of a head's rows are in use: W_h; 0 rows are all from first on
    transposed                    False: y = W_h x, N rows and K = M; True: y = W_h^T x, K rows and N = M
    returns      [T, H, N + tail] f32   y[t, h] = (product with x[t, h, :K], x[t, h, K:]), products of floats

    Bytes moved: the rows in use, 4*T*H*(K + N + 2*tail).
    Raises ValueError if a shape or dtype differs, rows lie outside a head's, or the tail is odd where pairs
    are sorted.
    """
    used, _, columns = check(x, weight, tail, interleaved, first, rows, transposed)
    matrices = dequantize(weight).reshape(x.shape[1], -1, weight.shape[1])[:, first : first + used]
    product = np.einsum(
        "thk,hkn->thn" if transposed else "thk,hnk->thn",
        x[:, :, :columns].astype(np.float64),
        matrices.astype(np.float64),
    ).astype(np.float32)
    rest = x[:, :, columns:]
    return np.concatenate([product, sorted_pairs(rest) if interleaved else rest], axis=2)
