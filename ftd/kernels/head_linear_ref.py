"""head_linear: the definition of a product with a matrix of its own for each head.

It takes queries into the space of latents and mixed latents back to values (multi-head latent attention). A
head of ``x`` may have a tail that is no part of the product and goes on behind it.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, weight: QuantMatrix, tail: int, interleaved: bool) -> tuple[int, int]:
    """Return N and K; raise ValueError unless the arguments fit the contract of ``head_linear``."""
    expect("x", x, "float32", ("T", "H", "K + tail"))
    heads, columns = x.shape[1], weight.shape[1]
    if tail < 0 or (interleaved and tail % 2):
        raise ValueError(f"tail must be at least 0, even where pairs are sorted, got {tail}")
    if heads < 1 or x.shape[2] != columns + tail:
        raise ValueError(f"a head of x must hold {columns} and {tail} channels, got {list(x.shape)}")
    if weight.shape[0] % heads or weight.shape[0] < heads:
        raise ValueError(f"rows of weight must be a multiple of {heads} heads, got {weight.shape[0]}")
    return weight.shape[0] // heads, columns


def sorted_pairs(tail: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return channels 0, 2, 4, … and then 1, 3, 5, … of the last axis."""
    return np.concatenate([tail[..., 0::2], tail[..., 1::2]], axis=-1)


def head_linear(
    x: NDArray[np.float32],
    weight: QuantMatrix,
    tail: int = 0,
    interleaved: bool = False,
    pool: object = None,
) -> NDArray[np.float32]:
    """Multiply each head of ``x`` with its own rows of ``weight``; copy a head's tail behind the product.

    x            [T, H, K + tail] f32
    weight       [H * N, K]       any FTW format; rows h * N to h * N + N - 1 belong to head h
    tail                          channels at the end of a head that are copied
    interleaved                   the tail's channels 0, 2, 4, … come first, then 1, 3, 5, …
    returns      [T, H, N + tail] f32   y[t, h] = (W_h x[t, h, :K], x[t, h, K:]), products of floats

    Bytes moved: H*N*K weights, 4*T*H*(K + N + 2*tail).
    Raises ValueError if a shape or dtype differs, or the tail is odd where pairs are sorted.
    """
    rows, columns = check(x, weight, tail, interleaved)
    heads = x.shape[1]
    matrices = dequantize(weight).reshape(heads, rows, columns).astype(np.float64)
    product = np.einsum("thk,hnk->thn", x[:, :, :columns].astype(np.float64), matrices).astype(np.float32)
    rest = x[:, :, columns:]
    return np.concatenate([product, sorted_pairs(rest) if interleaved else rest], axis=2)
