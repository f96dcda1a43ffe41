"""How the products of a GPU are launched, by the weight, the tokens and the precision; measured on an H200.

Up to 64 tokens memory is the bound: the weight is read once, its K split where rows are too few to occupy the
card. One token's product of codes has kernels of its own (``row_products``), 2 to 64 tokens' those of
``word_products``.
"""

from typing import NamedTuple

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.shapes import ceil_div, power_of_two
from ftd.kernels.word_product_triton import CODE_FORMATS

# Tokens of the largest decode step, and of a norm in the product's kernel.
DECODE_TOKENS = 16
# Up to so many tokens memory is the bound, and K is split to occupy the card: the decode kernel's matter.
SPLIT_TOKENS = 64


class Launch(NamedTuple):
    """How a kernel is launched: BN rows by BK columns, BT tokens, parts of K, warps, pipeline stages."""

    bn: int
    bk: int
    bt: int
    splits: int
    warps: int
    stages: int


def decode_launch(weight: DeviceMatrix, tokens: int, precision: str) -> Launch:
    """Return how a product of few tokens is launched; measured on an H200."""
    rows = weight.shape[0]
    if precision == "f32":
        return Launch(32, 64, DECODE_TOKENS, 1, 4, 2)
    bt = max(8, power_of_two(tokens))
    if in_words(weight, precision):
        if tokens == 1:
            bk, warps = (1024, 2) if rows > 4096 else (2048, 4)
            while bk > 512 and weight.shape[1] % bk:
                bk //= 2
            return Launch(8 if rows >= 2048 else 4, bk, 1, 1, warps, 1)
        if tokens > DECODE_TOKENS:
            return Launch(32, 128, bt, parts(rows, 32, 256), 2, 4)
        if rows >= 16384:
            return Launch(32, 256, bt, 1, 1, 3)
        return Launch(64, 256, bt, parts(rows, 64, 256), 2, 3)
    if tokens > DECODE_TOKENS:
        return Launch(64, 128, bt, parts(rows, 64, 128), 4, 3)
    return Launch(64, 128, DECODE_TOKENS, parts(rows, 64, 128), 4, 4)


def squared_tiles(weight: DeviceMatrix, tokens: int, precision: str) -> int:
    """Return of how many tiles of rows a product leaves the sums of squares."""
    return ceil_div(weight.shape[0], decode_launch(weight, tokens, precision).bn)


def in_words(weight: DeviceMatrix, precision: str) -> bool:
    """Return whether one token goes through ``row_products``, 2 to 64 through ``word_products``."""
    return precision == "fast" and weight.format in CODE_FORMATS and weight.shape[1] % 32 == 0


def parts(rows: int, tile: int, programs: int) -> int:
    """Return the power of two, at most 8, of parts of K that gives so many programs."""
    count = 1
    while count < 8 and ceil_div(rows, tile) * count < programs:
        count *= 2
    return count


def prefill_launch(weight: DeviceMatrix, tokens: int, precision: str) -> Launch:
    """Return how a product of many tokens is launched; measured on an H200."""
    if precision == "f32":
        return Launch(32, 32, 64, 1, 4, 2)
    if weight.format == "bf16" and tokens > 256:
        return Launch(128, 64, 256, 1, 8, 3)
    if ceil_div(weight.shape[0], 128) * ceil_div(tokens, 128) < 132:
        return Launch(64, 64, 128, 1, 4, 4)
    return Launch(128, 64, 128, 1, 8, 4)


def is_decode(tokens: int, precision: str) -> bool:
    """Return whether a product of so many tokens goes through ``decode_kernel``."""
    return tokens <= (DECODE_TOKENS if precision == "f32" else SPLIT_TOKENS)


def choose_launch(weight: DeviceMatrix, tokens: int, precision: str) -> Launch:
    """Return how a product is launched, by its tokens."""
    return (decode_launch if is_decode(tokens, precision) else prefill_launch)(weight, tokens, precision)
