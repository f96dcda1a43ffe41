"""What kernels know of a format of codes while they are compiled; ``quant.py`` draws the formats.

planes   codes │ high, the bits above the fourth │ scales │ mins │ d │ dmin │ global     those that it has
"""
# mypy: allow-untyped-decorators

import triton


@triton.constexpr_function
def is_fp4(format_name: str) -> bool:
    """Return whether codes are floats of four bits, not whole numbers."""
    return format_name in ("mxfp4", "nvfp4")


@triton.constexpr_function
def has_least(format_name: str) -> bool:
    """Return whether a block has a summand: what its code 0 is worth."""
    return format_name in ("q4_1", "q5_1", "q4_k", "q5_k")


@triton.constexpr_function
def has_high_bits(format_name: str) -> bool:
    """Return whether codes have bits above the fourth, in a plane of their own behind the nibbles."""
    return format_name in ("q5_0", "q5_1", "q5_k", "q6_k")


@triton.constexpr_function
def is_four_bits(format_name: str) -> bool:
    """Return whether codes are whole numbers of four bits, whose high nibbles can stay in bits 4-7."""
    return format_name in ("q4_0", "q4_1", "q4_k")


@triton.constexpr_function
def has_halves(format_name: str) -> bool:
    """Return whether the low and the high nibbles of a block of 32 have a scale each."""
    return format_name in ("nvfp4", "q6_k")


@triton.constexpr_function
def code_offset(format_name: str) -> int:
    """Return the code that is worth 0: of bytes, once their highest bit is turned.

    0 of fp4 and of formats with a summand.
    """
    if format_name == "q8_0":
        return 128
    if format_name == "q6_k":
        return 32
    if format_name == "q5_0":
        return 16
    return 8 if format_name == "q4_0" else 0


@triton.constexpr_function
def scale_plane(format_name: str) -> int:
    """Return the place of the scales among the planes: behind codes and high bits."""
    return 2 if has_high_bits(format_name) else 1


@triton.constexpr_function
def num_words(format_name: str, columns: int) -> int:
    """Return how many 32-bit words hold the codes (of high bits: the nibbles) of so many columns of a row."""
    return columns // 4 if format_name == "q8_0" else columns // 8
