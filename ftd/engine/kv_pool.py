"""The memory of all keys and values, or of latents: arrays of pages for each layer, allocated once.

Which page belongs to whom is the business of ``pages``; this module only owns the bytes. Memory is reserved,
not touched: the system commits a page when a token is first written into it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ftd.engine.model_config import ModelConfig
from ftd.errors import OutOfMemory

ITEM_BYTES = {"fast": 2, "f32": 4}


class KvPool:
    """Pages of every layer: ``k[layer]`` [P, G, C, page_size], ``v[layer]`` [P, G, page_size, C].

    Recurrent layers have none: None. Latent attention keeps one row a token in ``k`` [P, page_size, C] alone,
    and the keys of an indexer in ``index`` where a layer has one.

    ``make_pages(shape, dtype)`` allocates zeros where the model computes.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        precision: str,
        make_pages: Callable[[tuple[int, ...], str], Any] = np.zeros,
    ) -> None:
        self.page_size = page_size
        self.num_bytes = num_pages * page_size * config.kv_bytes_per_token(ITEM_BYTES[precision])
        k_shape: tuple[int, ...] = (num_pages, config.num_kv_heads, config.head_dim, page_size)
        v_shape = (num_pages, config.num_kv_heads, page_size, config.head_dim)
        if config.latent is not None:
            k_shape = (num_pages, page_size, config.latent.row_size)
        dtype = "float32" if precision == "f32" else "float16"
        self.k: list[Any] = []
        self.v: list[Any] = []
        self.index: list[Any] = []
        index = config.latent.index if config.latent else None
        try:
            for layer in range(config.num_layers):
                has_pages = config.recurrent is None or not config.recurrent.layers[layer]
                self.k.append(make_pages(k_shape, dtype) if has_pages else None)
                self.v.append(make_pages(v_shape, dtype) if has_pages and config.latent is None else None)
                if index is not None and index.layers[layer]:
                    self.index.append(make_pages((*k_shape[:2], index.head_dim), dtype))
                else:
                    self.index.append(None)
        except MemoryError as exc:
            raise OutOfMemory(
                f"the system refused {self.num_bytes} bytes for {num_pages} KV pages",
                "lower the context window or the number of parallel sequences",
            ) from exc
