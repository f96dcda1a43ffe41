"""kv_store: the definition. Pages are ``[P, G, page_size, C]``: one head's keys of a page are contiguous."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(
    k: ArrayLike, v: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, kv_index: NDArray[np.int32]
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``kv_store``."""
    expect("k", k, "float32", ("T", "G", "C"))
    tokens, heads, channels = k.shape
    expect("v", v, "float32", (tokens, heads, channels))
    expect("k_pages", k_pages, "float16 float32", ("P", heads, "page_size", channels))
    expect("v_pages", v_pages, str(k_pages.dtype).removeprefix("torch."), tuple(k_pages.shape))
    expect("kv_index", kv_index, "int32", (tokens,))
    if tokens:
        last = k_pages.shape[0] * k_pages.shape[2] - 1
        expect_range("kv_index", int(kv_index.min()), int(kv_index.max()), 0, last)


def kv_store(
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    k_pages: NDArray[np.floating],
    v_pages: NDArray[np.floating],
    kv_index: NDArray[np.int32],
    pool: object = None,
) -> None:
    """Write each token's key and value to its place in the pages.

    k, v      [T, G, C]            f32
    k_pages   [P, G, page_size, C] f16 or f32   written in place, rounded to nearest even
    v_pages   as k_pages
    kv_index  [T] i32              page * page_size + offset, distinct

    Bytes moved: 8*T*G*C read, 2 * T*G*C * item size written.
    Raises ValueError if a shape or dtype differs or an index lies outside the pages.
    """
    check(k, v, k_pages, v_pages, kv_index)
    page, offset = np.divmod(kv_index, k_pages.shape[2])
    with np.errstate(over="ignore"):
        k_pages[page, :, offset] = k.astype(k_pages.dtype)
        v_pages[page, :, offset] = v.astype(v_pages.dtype)
