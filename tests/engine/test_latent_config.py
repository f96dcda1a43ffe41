"""Sizes of latent attention, against numbers worked out by hand from DeepSeek-V3's config.json."""

import math

import pytest

from ftd.engine import latent_config
from ftd.engine.hyperparameters import Values
from ftd.errors import InvalidFtw

V3 = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
YARN = {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}


def test_sizes_and_scale_of_v3() -> None:
    config = latent_config.make(Values({**V3, "rope_scaling": YARN}), 3)
    assert (config.row_size, config.query_size, config.q_rank) == (576, 192, 1536)
    assert config.interleaved
    assert config.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)


@pytest.mark.parametrize(
    "scaling", [{}, {"rope_type": "default", "mscale_all_dim": 1.0}, YARN | {"mscale_all_dim": 0}]
)
def test_without_a_magnitude_the_scale_is_that_of_the_query(scaling: dict[str, object]) -> None:
    config = latent_config.make(Values({**V3, "q_lora_rank": None, "rope_parameters": scaling}), 3)
    assert config.scale == pytest.approx(192**-0.5) and config.q_rank == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim must be even: 7"),
        ({"v_head_dim": 0}, "v_head_dim"),
        ({"rope_interleave": "yes"}, "rope_interleave"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidFtw, match=message):
        latent_config.make(Values(V3 | changes), 3)


INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}


def test_an_indexer_keeps_keys_in_the_layers_that_have_one() -> None:
    config = latent_config.make(Values(V3 | INDEX), 3)
    assert config.index is not None and config.index.layers == (True, True, True)
    assert config.kept_values == 3 * 128
    shared = latent_config.make(Values(V3 | INDEX | {"indexer_types": ["full", "shared", "full"]}), 3)
    assert shared.kept_values == 2 * 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": 0}, "index_topk"),
        ({"index_head_dim": 32}, "index_head_dim must be at least 64"),
        ({"q_lora_rank": None}, "queries compressed"),
        ({"indexer_types": ["shared", "full", "full"]}, "first full"),
        ({"indexer_types": ["full"]}, "each of 3 layers"),
    ],
)
def test_an_indexer_that_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidFtw, match=message):
        latent_config.make(Values(V3 | INDEX | changes), 3)
