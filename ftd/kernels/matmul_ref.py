"""matmul: the definition, in both precisions."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.shapes import ArrayLike, expect

BLOCK = 32
PRECISIONS: tuple[str, ...] = ("fast", "f32")

# Formats whose codes are no small whole numbers: products with them are exact in both precisions.
_FLOAT_FORMATS: frozenset[str] = frozenset({"f32", "f16", "bf16", "fp8_b128"})


def check(x: ArrayLike, weight: QuantMatrix, bias: ArrayLike | None, precision: str) -> None:
    """Raise ValueError unless the arguments fit the contract of ``matmul``."""
    expect("x", x, "float32", ("T", weight.shape[1]))
    if bias is not None:
        expect("bias", bias, "float32", (weight.shape[0],))
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {' '.join(PRECISIONS)}, got {precision}")


def uses_quantized_activations(weight: QuantMatrix, precision: str) -> bool:
    """Return whether ``precision`` quantises x for this weight: only where its codes are whole numbers."""
    return precision == "fast" and weight.format not in _FLOAT_FORMATS and weight.shape[1] % BLOCK == 0


def quantize_activations(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return x [T, K] rounded to 255 levels between the lowest and the highest value of each block of 32.

    The levels lie symmetrically around the middle: x = d*q + z with q in -127 .. 127, d and z in float32.
    """
    blocks = x.reshape(-1, BLOCK)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    d = (high - low) * np.float32(1 / 254)
    z = np.float32(0.5) * (high + low)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
    q = np.clip(np.rint((blocks - z) * inverse), -127, 127)
    rounded: NDArray[np.float64] = d.astype(np.float64) * q + z
    return rounded.reshape(x.shape)


def matmul(
    x: NDArray[np.float32],
    weight: QuantMatrix,
    bias: NDArray[np.float32] | None = None,
    precision: str = "fast",
    pool: object = None,
) -> NDArray[np.float32]:
    """Multiply rows by a quantised weight: ``x W^T`` (+ bias).

    x       [T, K] f32
    weight  [N, K] any FTW format
    bias    [N]    f32
    returns [T, N] f32

    precision "f32": floats of x times exact weights. "fast": x first rounded by ``quantize_activations``
    where the weight has whole-number codes. A row of the result depends on its row of x alone, never on T.

    Bytes moved: the planes of weight once, 4*T*K, 4*T*N written.
    Raises ValueError if x is not f32 [T, K], bias is not f32 [N] or the precision is unknown.
    """
    check(x, weight, bias, precision)
    rounded = (
        quantize_activations(x) if uses_quantized_activations(weight, precision) else x.astype(np.float64)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        out = rounded @ dequantize(weight).astype(np.float64).T
        if bias is not None:
            out = out + bias
        return out.astype(np.float32)
