"""select_logit_rows: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(x: ArrayLike, rows: NDArray[np.int32]) -> None:
    """Raise ValueError unless the arguments fit the contract of ``select_logit_rows``."""
    expect("x", x, "float32", ("T", "D"))
    expect("rows", rows, "int32", ("num_logits",))
    if rows.shape[0]:
        expect_range("rows", int(rows.min()), int(rows.max()), 0, x.shape[0] - 1)


def select_logit_rows(
    x: NDArray[np.float32], rows: NDArray[np.int32], pool: object = None
) -> NDArray[np.float32]:
    """Return the rows of ``x`` whose logits are wanted.

    x       [T, D]          f32
    rows    [num_logits]    i32   token indices
    returns [num_logits, D] f32

    Bytes moved: 8*num_logits*D.
    Raises ValueError if a shape or dtype differs or a row lies outside x.
    """
    check(x, rows)
    return x[rows]
