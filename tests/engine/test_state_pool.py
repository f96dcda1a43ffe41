"""Recurrent states: shapes and bytes against the formula, copies, refusal against a system without memory."""

import numpy as np
import pytest

from ftd.engine import model_config
from ftd.engine.kv_pool import KvPool
from ftd.engine.recurrent_config import RecurrentConfig
from ftd.engine.state_pool import StatePool
from ftd.errors import OutOfMemory
from tests.engine.hybrid import SHARED


def config() -> RecurrentConfig:
    made = model_config.make("qwen3_5", SHARED).recurrent
    assert made is not None
    return made


def test_states_of_the_recurrent_layers() -> None:
    pool = StatePool(config(), 5)
    assert list(pool.conv) == list(pool.delta) == [0, 1, 3]
    assert {array.shape for array in pool.conv.values()} == {(5, 3, 2 * 2 * 24 + 4 * 40)}
    assert {array.shape for array in pool.delta.values()} == {(5, 4, 24, 40)}
    arrays = [*pool.conv.values(), *pool.delta.values()]
    assert all(array.dtype == np.float32 and not array.any() for array in arrays)
    assert pool.num_bytes == sum(array.nbytes for array in arrays) == 5 * config().state_bytes


def test_only_layers_with_attention_have_pages() -> None:
    whole = model_config.make("qwen3_5", SHARED)
    pages = KvPool(whole, 3, 8, "f32")
    assert [array is not None for array in pages.k] == [array is not None for array in pages.v]
    assert [array is not None for array in pages.k] == [False, False, True, False]
    assert whole.num_kv_layers == 1
    assert pages.num_bytes == pages.k[2].nbytes + pages.v[2].nbytes


def test_a_copy_is_whole_and_leaves_the_others() -> None:
    pool = StatePool(config(), 4)
    rng = np.random.default_rng(1)
    arrays = [*pool.conv.values(), *pool.delta.values()]
    for array in arrays:
        array[:] = rng.standard_normal(array.shape)
    before = [array.copy() for array in arrays]
    pool.copy(2, 0)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array[0], old[2])
        np.testing.assert_array_equal(array[1:], old[1:])


def test_refused_memory_is_an_error_with_numbers() -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    with pytest.raises(OutOfMemory, match=f"{2 * config().state_bytes} bytes for 2 recurrent states"):
        StatePool(config(), 2, refuse)
