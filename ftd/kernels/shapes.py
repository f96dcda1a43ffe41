"""One way to check arrays against a contract, so that every implementation of an op gives the same message.

Only ``.shape`` and ``.dtype`` are looked at: NumPy arrays and torch tensors both fit. And the numbers that
launches are made of: Triton's functions of the same meaning are made for kernels, and take microseconds here.
"""

from functools import cache
from typing import Protocol


class ArrayLike(Protocol):
    """What a check needs to see of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> object:
        """Item type; its text names it (``float32``, ``torch.float32``)."""
        ...


def expect(name: str, array: ArrayLike, dtypes: str, shape: tuple[int | str, ...]) -> None:
    """Raise ValueError unless ``array`` has one of ``dtypes`` (blank-separated) and ``shape``.

    An int in ``shape`` is a wanted length, a letter stands for any length.
    """
    dtype, lengths = _name_of(array.dtype), array.shape
    if dtype in _words(dtypes) and len(lengths) == len(shape):
        for wanted, length in zip(shape, lengths, strict=True):
            if wanted != length and not isinstance(wanted, str):
                break
        else:
            return
    wanted_shape = ", ".join(str(length) for length in shape)
    raise ValueError(
        f"{name} must be {' or '.join(_words(dtypes))} [{wanted_shape}], got {dtype} {list(lengths)}"
    )


@cache
def _words(text: str) -> tuple[str, ...]:
    """Return the words of ``text``."""
    return tuple(text.split())


@cache
def _name_of(dtype: object) -> str:
    """Return the text of an item type; NumPy takes microseconds to make it, and every step asks."""
    return str(dtype).removeprefix("torch.")


def expect_range(name: str, low: int, high: int, minimum: int, maximum: int) -> None:
    """Raise ValueError unless values from ``low`` to ``high`` lie in ``minimum`` to ``maximum`` inclusive."""
    if low < minimum or high > maximum:
        raise ValueError(f"{name} must lie in {minimum} to {maximum}, got {low if low < minimum else high}")


def ceil_div(number: int, divisor: int) -> int:
    """Return ``number / divisor``, rounded up."""
    return -(-number // divisor)


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least ``number``, 1 or more."""
    return 1 << max(number - 1, 0).bit_length()
