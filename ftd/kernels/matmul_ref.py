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
    """Return x [T, K] rounded to whole multiples of a step, 253 of them in the range of each block of 32.

    The range is as far to one side of 0 as to the other, or, where that is less than 5/8 as long, from the
    lowest to the highest value (or 0, where that is lower or higher). x = d*(q + z) with whole q and z in
    -127 .. 127 and d in float32. A block with a value that is no finite number is NaN.

    Why z is mostly 0: with AVX2 products of one token skip such a z and are a fifth faster; the best z for
    every block takes the mean KL divergence of SmolLM2 Q4_1 from 0.00133 to 0.00100 (2,048 tokens). 12 bits
    would take it to 0.00002, for two 8-bit products a weight.
    """
    blocks = x.reshape(-1, BLOCK)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low = np.minimum(blocks.min(axis=1, keepdims=True), np.float32(0))
        high = np.maximum(blocks.max(axis=1, keepdims=True), np.float32(0))
        most = np.maximum(high, -low)
        both_sides = high - low >= np.float32(1.25) * most
        low, high = np.where(both_sides, -most, low), np.where(both_sides, most, high)
        d = (high - low) * np.float32(1 / 253)
        finite = np.isfinite(d)
        inverse = np.where((d >= np.float32(2.0**-126)) & finite, np.float32(1) / d, np.float32(0))
        z = np.rint(np.float32(0.5) * (high + low) * inverse)
        q = np.clip(np.rint(blocks * inverse) - z, -127, 127)
        rounded: NDArray[np.float64] = np.where(finite, d, np.float32("nan")).astype(np.float64) * (q + z)
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
    where the weight has whole-number codes; with bf16 weights a version may take x to 2^-17 of each value
    (AMX: the sum of two bfloat16), and a row of x with an infinity gives NaN. A row of the result depends on
    its row of x alone, never on T, but for bf16 weights on AMX: fewer than 8 tokens have other sums there.

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
