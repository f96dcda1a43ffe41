"""latent_store: the definition. A page holds a token's latent and shared key once, ``[P, page_size, C]``."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check_pages(pages: ArrayLike, channels: int | str) -> None:
    """Raise ValueError unless the array is pages of latents."""
    expect("pages", pages, "float16 float32", ("P", "page_size", channels))
    if min(pages.shape[1:]) < 1:
        raise ValueError(f"a page must hold at least one value, got {list(pages.shape)}")


def check(x: ArrayLike, pages: ArrayLike, kv_index: NDArray[np.int32]) -> None:
    """Raise ValueError unless the arguments fit the contract of ``latent_store``."""
    expect("x", x, "float32", ("T", "C"))
    check_pages(pages, x.shape[1])
    expect("kv_index", kv_index, "int32", (x.shape[0],))
    if x.shape[0]:
        last = pages.shape[0] * pages.shape[1] - 1
        expect_range("kv_index", int(kv_index.min()), int(kv_index.max()), 0, last)


def latent_store(
    x: NDArray[np.float32], pages: NDArray[np.floating], kv_index: NDArray[np.int32], pool: object = None
) -> None:
    """Write each token's latent and key to its place in the pages.

    x         [T, C]            f32
    pages     [P, page_size, C] f16 or f32   written in place, rounded to nearest even
    kv_index  [T] i32           page * page_size + offset, distinct

    Bytes moved: 4*T*C read, T*C * item size written.
    Raises ValueError if a shape or dtype differs or an index lies outside the pages.
    """
    check(x, pages, kv_index)
    page, offset = np.divmod(kv_index, pages.shape[1])
    with np.errstate(over="ignore"):
        pages[page, offset] = x.astype(pages.dtype)
