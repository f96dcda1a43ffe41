"""kv_store: the definition.

Keys lie in their page channel by channel, ``[P, G, C, page_size]``: attention multiplies a query channel
with that channel of many keys at once. Values lie token by token, ``[P, G, page_size, C]``.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check_pages(k_pages: ArrayLike, v_pages: ArrayLike, num_heads: int | str, channels: int | str) -> None:
    """Raise ValueError unless the two arrays are pages of the same size, type and number."""
    expect("k_pages", k_pages, "float16 float32", ("P", num_heads, channels, "page_size"))
    pages, groups, wide, page_size = k_pages.shape
    expect("v_pages", v_pages, str(k_pages.dtype).removeprefix("torch."), (pages, groups, page_size, wide))
    if min(groups, wide, page_size) < 1:
        raise ValueError(f"a page must hold at least one value, got {list(k_pages.shape)}")


def check(
    k: ArrayLike, v: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, kv_index: NDArray[np.int32]
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``kv_store``."""
    expect("k", k, "float32", ("T", "G", "C"))
    tokens, heads, channels = k.shape
    expect("v", v, "float32", (tokens, heads, channels))
    check_pages(k_pages, v_pages, heads, channels)
    expect("kv_index", kv_index, "int32", (tokens,))
    if tokens:
        last = v_pages.shape[0] * v_pages.shape[2] - 1
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
    k_pages   [P, G, C, page_size] f16 or f32   written in place, rounded to nearest even
    v_pages   [P, G, page_size, C] as k_pages
    kv_index  [T] i32              page * page_size + offset, distinct

    Bytes moved: 8*T*G*C read, 2 * T*G*C * item size written.
    Raises ValueError if a shape or dtype differs or an index lies outside the pages.
    """
    check(k, v, k_pages, v_pages, kv_index)
    page, offset = np.divmod(kv_index, v_pages.shape[2])
    with np.errstate(over="ignore"):
        k_pages[page, :, :, offset] = k.astype(k_pages.dtype)
        v_pages[page, :, offset] = v.astype(v_pages.dtype)
