"""position_embedding: the definition of learned absolute positions."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(x: ArrayLike, positions: NDArray[np.int32], table: ArrayLike) -> None:
    """Raise ValueError unless the arguments fit the contract of ``position_embedding``."""
    expect("x", x, "float32", ("T", "D"))
    expect("positions", positions, "int32", (x.shape[0],))
    expect("table", table, "float32", ("S", x.shape[1]))
    if positions.shape[0]:
        expect_range("positions", int(positions.min()), int(positions.max()), 0, table.shape[0] - 1)


def position_embedding(
    x: NDArray[np.float32], positions: NDArray[np.int32], table: NDArray[np.float32], pool: object = None
) -> NDArray[np.float32]:
    """Add to each row of ``x`` the row of ``table`` that its position names.

    x          [T, D] f32
    positions  [T]    i32
    table      [S, D] f32
    returns    [T, D] f32   y = x + table[positions]

    Bytes moved: 12*T*D.
    Raises ValueError if a shape or dtype differs or a position lies outside 0 .. S - 1.
    """
    check(x, positions, table)
    return x + table[positions]
