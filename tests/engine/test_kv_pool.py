"""KV pages: shapes and bytes against the formula, refusal against a system without memory."""

from typing import Any

import numpy as np
import pytest

from ftd.engine import model_config
from ftd.engine.kv_pool import KvPool
from ftd.errors import OutOfMemory
from tests.engine.tiny import SIZES


@pytest.mark.parametrize(("precision", "dtype"), [("fast", np.float16), ("f32", np.float32)])
def test_pages_of_each_layer(precision: str, dtype: Any) -> None:
    config = model_config.make("llama", SIZES)
    pool = KvPool(config, 5, 8, precision)
    assert [array.shape for array in pool.k] == [(5, 2, 16, 8)] * 3
    assert [array.shape for array in pool.v] == [(5, 2, 8, 16)] * 3
    assert all(array.dtype == dtype and not array.any() for array in pool.k + pool.v)
    assert pool.num_bytes == sum(array.nbytes for array in pool.k + pool.v)


def test_refused_memory_is_an_error_with_numbers() -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    with pytest.raises(OutOfMemory, match="30720 bytes for 5 KV pages"):
        KvPool(model_config.make("llama", SIZES), 5, 16, "fast", refuse)
