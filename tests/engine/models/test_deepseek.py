"""DeepSeek V2, V3 and V3.2 served: greedy text, batches, cached prefixes; against transformers and itself.

Logits of prompts, chunks and mixed batches are compared in tests/engine/test_model.py.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from ftd.engine.messages import Load
from tests.engine import tiny
from tests.engine.serving import Serving, write_ftw

LENGTHS = (1, 31, 32, 33, 64, 257)


@pytest.fixture(scope="module", params=["deepseek_v2", "deepseek_v3", "deepseek_v32"])
def oracle(request: pytest.FixtureRequest) -> tiny.Tiny:
    """All generations, with room for the longest prompt; the last one sees 20 keys of them."""
    return tiny.make(request.param, max_position_embeddings=512)


@pytest.fixture(scope="module")
def load(oracle: tiny.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The message that loads it with room for eight sequences."""
    import msgspec

    message = write_ftw(oracle, tmp_path_factory.mktemp("ftw"))
    return msgspec.structs.replace(message, context_tokens=400, max_sequences=8, num_threads=2)


@pytest.fixture
def serving(load: Load) -> Iterator[Serving]:
    """An engine that has loaded it."""
    serving = Serving(load)
    yield serving
    serving.close()


def prompt(length: int) -> list[int]:
    """Return ids, the same for the same length."""
    return [int(token) for token in np.random.default_rng(length).integers(0, 160, length)]


def greedy(oracle: tiny.Tiny, ids: list[int], count: int) -> list[int]:
    """Return transformers' greedy continuation, every token from the whole context."""
    text = list(ids)
    for _ in range(count):
        text.append(int(oracle.logits(text)[-1].argmax()))
    return text[len(ids) :]


@pytest.mark.slow
def test_greedy_text_of_64_tokens(serving: Serving, oracle: tiny.Tiny) -> None:
    request = serving.start(prompt(33), max_tokens=64)
    serving.run()
    assert serving.tokens(request) == greedy(oracle, prompt(33), 64)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_batch_equals_its_sequences_alone(serving: Serving, oracle: tiny.Tiny, count: int) -> None:
    lengths = [LENGTHS[index % len(LENGTHS)] + index // len(LENGTHS) for index in range(count)]
    together = [serving.start(prompt(length), max_tokens=6) for length in lengths]
    serving.run()
    for length, request in zip(lengths, together, strict=True):
        alone = serving.start(prompt(length), max_tokens=6, cache_salt="alone")
        serving.run()
        assert serving.tokens(request) == serving.tokens(alone)
    assert serving.tokens(together[-1]) == greedy(oracle, prompt(lengths[-1]), 6)


def test_a_cached_prefix_gives_the_cold_text(serving: Serving) -> None:
    ids = prompt(257)
    cold = serving.start(ids, max_tokens=10)
    serving.run()
    warm = serving.start(ids, max_tokens=10)
    longer = serving.start([*ids, *serving.tokens(cold)], max_tokens=10)
    fresh = serving.start([*ids, *serving.tokens(cold)], max_tokens=10, cache_salt="fresh")
    serving.run()
    assert serving.finished(warm).cached_tokens == 256 and serving.tokens(warm) == serving.tokens(cold)
    assert serving.finished(longer).cached_tokens >= 256
    assert serving.tokens(longer) == serving.tokens(fresh)


def test_a_token_takes_one_compressed_row_of_memory(serving: Serving) -> None:
    """3 layers of 32 + 8 values of 4 bytes; keys and values of 4 heads would take 5 times as much.

    An indexer keeps 16 more a layer.
    """
    config, pool = serving.engine.config, serving.engine.model.kv_pool
    assert config.latent is not None
    index = 16 if config.latent.index else 0
    assert config.kv_bytes_per_token(4) == 3 * (40 + index) * 4
    assert all(pages.shape[1:] == (32, 40) for pages in pool.k) and pool.v == [None] * 3
    assert all(pages is None or pages.shape[1:] == (32, 16) for pages in pool.index)
