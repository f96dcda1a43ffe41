"""Local routing of random models: what the weights say, against the probabilities that they are made for."""

import itertools

import numpy as np
import pytest

from ftd.engine.locality import Locality
from ftd.engine.synthetic import Synthetic, SyntheticWeights
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS

SMALL = Locality(topics=16, tokens=8)
WIDTH = 1024


def chosen(locality: Locality, layer: int) -> list[set[int]]:
    """Return the experts of each id, 8 of 64."""
    hidden = locality.embedding(WIDTH) / np.float32(locality.size)
    logits = hidden @ locality.router(layer, 64, WIDTH).T
    return [set(row) for row in np.argsort(-logits, axis=1)[:, :8].tolist()]


def test_the_next_token_is_of_the_topic_or_of_one_that_follows() -> None:
    hidden = SMALL.embedding(WIDTH) / np.float32(SMALL.size)
    logits = hidden @ SMALL.head(WIDTH).T
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    by_topic = probabilities.reshape(16, 8, 16, 8).mean(axis=1).sum(axis=2)
    stay = np.diagonal(by_topic)
    following = np.take_along_axis(by_topic, SMALL.following(), axis=1).sum(axis=1)
    assert stay.mean() == pytest.approx(SMALL.stay, abs=0.05)
    np.testing.assert_allclose(stay + following, 1.0, atol=1e-3)


def test_tokens_of_a_topic_share_experts_and_layers_differ() -> None:
    first, second = chosen(SMALL, 0), chosen(SMALL, 1)
    same = np.mean([len(first[8 * t] & first[8 * t + 1]) for t in range(16)])
    other = np.mean([len(first[8 * t] & first[(8 * t + 8) % 128]) for t in range(16)])
    assert same > 4 and other < 2.5
    assert np.mean([len(a & b) for a, b in zip(first, second, strict=True)]) < 2.5


def test_experts_of_ids_are_those_that_routers_choose() -> None:
    ids = SMALL.text(40, 1)
    routes = SMALL.routes(ids, 3, 64, 8, WIDTH)
    for layer in range(3):
        by_id = chosen(SMALL, layer)
        assert [set(row) for row in routes[layer].tolist()] == [by_id[each] for each in ids]


def test_text_stays_in_topics_as_the_model_does() -> None:
    topics = np.array(SMALL.text(4000, 1)) // SMALL.tokens
    assert np.mean(topics[1:] == topics[:-1]) == pytest.approx(SMALL.stay, abs=0.02)
    follows = SMALL.following()
    assert all(b in follows[a] for a, b in itertools.pairwise(topics) if a != b)
    assert SMALL.text(50, 1) == SMALL.text(50, 1) != SMALL.text(50, 2)
    after = [SMALL.text(1, seed, after=37)[0] // SMALL.tokens for seed in range(200)]
    assert np.mean(np.array(after) == 37 // SMALL.tokens) == pytest.approx(SMALL.stay, abs=0.06)


def test_weights_repeat_embeddings_and_never_choose_other_ids() -> None:
    weights = SyntheticWeights("q8_0", 0, locality=SMALL)
    embedding = dequantize(weights.matrix("model.embed_tokens.weight", 300, 64))
    head = dequantize(weights.matrix("lm_head.weight", 300, 64))
    np.testing.assert_array_equal(embedding[128:256], embedding[:128])
    exact = SMALL.embedding(64)
    # q8_0 rounds by half of a 127th of a block's largest value, which f16 keeps
    np.testing.assert_allclose(embedding[:128], exact, atol=np.abs(exact).max() / 254 * 1.01)
    assert np.abs(head[:128]).max(axis=1).min() > 0 and not head[128:].any()
    router = dequantize(weights.matrix("model.layers.3.mlp.gate.weight", 8, 64))
    np.testing.assert_array_equal(router, SMALL.router(3, 8, 64))


def test_layers_have_memory_of_their_own_that_loads_share() -> None:
    source = Synthetic("tiny-moe", "q4_0", locality=SMALL)
    first, again = (source.read(lambda *_: None).weights for _ in range(2))
    banks = [first.bank(layer, 8, 256, 256) for layer in range(2)]
    np.testing.assert_array_equal(banks[1].records[0], banks[0].records[5])
    assert not np.shares_memory(banks[0].records, banks[1].records)
    assert again.bank(1, 8, 256, 256).records is banks[1].records


@pytest.mark.parametrize("format_name", sorted(FORMATS))
def test_random_weights_have_no_mean(format_name: str) -> None:
    # One that is a tenth of the spread makes all tokens alike after a few layers
    values = dequantize(SyntheticWeights(format_name, 0).matrix("m", 512, 2048))
    assert abs(values.mean()) < 0.02 * values.std()
