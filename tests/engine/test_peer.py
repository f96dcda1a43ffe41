"""Every family that llama.cpp knows against llama.cpp on the same float32 weights: the second oracle.

FTD_PEER names the folder of its programs (llama-perplexity is used); without it these tests are skipped.
Log-probabilities are compared over the second half of windows of 128 tokens.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftd.engine import model_config
from ftd.engine.model import Model
from ftd.engine.weights import Weights
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.sink import DirectorySink
from tests.engine import hybrid, peer, test_hybrid, test_hybrid_checkpoints, test_latent_gguf, tiny
from tests.engine.test_model import graph_class

pytestmark = pytest.mark.slow

# Read before the environment is scrubbed for each test
PEER = os.environ.get("FTD_PEER")
# The file keeps steps of at most 16 / 65535; the rest is rounding in float32 on both sides
TOLERANCE = 2e-3
SIZES = {"max_position_embeddings": 512, "hidden_size": 64}
MOE = {"expert_feed_forward_length": 32}
GEMMA = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "query_pre_attn_scalar": 32,
    "rope_scaling": None,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}

# Of gpt-oss llama.cpp rounds the bounds of yarn's bands, transformers and ftd do not: here all round
ROUNDED_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "original_max_position_embeddings": 64,
}

# case of tests.engine.tiny -> (architecture, changes to the model, more metadata)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama-untied-biased": ("llama", {}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "gemma3_text": ("gemma3", GEMMA, {"attention.sliding_window": 12}),
    "qwen3_moe": ("qwen3moe", {"mlp_only_layers": []}, {**MOE, "expert_count": 8, "expert_used_count": 3}),
    "qwen2_moe": (
        "qwen2moe",
        {"tie_word_embeddings": False},
        {
            **MOE,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_feed_forward_length": 48,
        },
    ),
    "mixtral": ("llama", {}, {"expert_count": 4, "expert_used_count": 2}),
    "olmoe": ("olmoe", {"num_key_value_heads": 4}, {"expert_count": 8, "expert_used_count": 2}),
    "granitemoe": (
        "granitemoe",
        {},
        {
            "expert_count": 8,
            "expert_used_count": 2,
            "embedding_scale": 3.0,
            "attention.scale": 0.3,
            "residual_scale": 0.4,
            "logit_scale": 2.5,
        },
    ),
    "gpt_oss": (
        "gpt-oss",
        {"swiglu_limit": 7.0, "rope_scaling": ROUNDED_YARN},
        {
            **YARN,
            "expert_feed_forward_length": 96,
            "expert_count": 8,
            "expert_used_count": 2,
            "attention.sliding_window": 12,
        },
    ),
}


@pytest.fixture(scope="module")
def program() -> Path:
    """llama.cpp's llama-perplexity."""
    if not PEER:
        pytest.skip("FTD_PEER is not set: the folder of llama.cpp's programs")
    path = Path(PEER) / "llama-perplexity"
    if not path.exists():
        pytest.skip(f"no such program: {path}")
    return path


def ours(model: tiny.Tiny, ids: list[int]) -> np.ndarray[Any, Any]:
    """Return ftd's log-probabilities after every token of one window, on the CPU in float32."""
    pages = -(-len(ids) // 16)
    engine = Model(
        model_config.make(model.architecture, model.hyperparameters),
        Weights(model.tensors, model.banks),
        graph_class("cython"),
        None,
        num_pages=pages,
        page_size=16,
        max_pages_per_sequence=pages,
        max_tokens=len(ids),
        max_sequences=1,
        max_logits=len(ids),
        precision="f32",
    )
    places = np.arange(len(ids), dtype=np.int32)
    table = np.arange(pages, dtype=np.int32)[None]
    lengths = np.array([0, len(ids)], np.int32)
    engine.run(np.array(ids, np.int32), places, places, lengths, lengths[1:].copy(), table, places)
    return log_softmax(engine.logits.astype(np.float64))


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def recurrent_settings(case: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return what a GGUF file of gated delta nets says besides what all files do."""
    settings = {
        "rope.dimension_count": int(values["head_dim"] * values["partial_rotary_factor"]),
        "ssm.conv_kernel": values["linear_conv_kernel_dim"],
        "ssm.state_size": values["linear_key_head_dim"],
        "ssm.group_count": values["linear_num_key_heads"],
        "ssm.time_step_rank": values["linear_num_value_heads"],
        "ssm.inner_size": values["linear_num_value_heads"] * values["linear_value_head_dim"],
        "attention.recurrent_layers": [kind == "linear_attention" for kind in hybrid.LAYERS],
    }
    if case != "qwen3_next":  # of text alone all channels turn by the same position
        settings["rope.dimension_sections"] = [1, 1, 0, 0]
    if case != "qwen3_5":
        settings |= {
            "expert_count": values["num_experts"],
            "expert_used_count": values["num_experts_per_tok"],
            "expert_feed_forward_length": values["moe_intermediate_size"],
            "expert_shared_feed_forward_length": values["shared_expert_intermediate_size"],
        }
    return settings


def assert_agree(program: Path, model: tiny.Tiny, folder: Path) -> None:
    """Compare both programs' log-probabilities of all windows; those that llama.cpp cuts off are left out."""
    windows = peer.logprobs(program, folder / "model.gguf", folder)
    assert len(windows) >= 2
    for ids, theirs in windows:
        assert_near(ours(model, ids), theirs)


def assert_near(whole: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    """Compare the log-probabilities of a window with llama.cpp's of its second half."""
    mine = whole[len(whole) // 2 : -1]
    assert mine.shape == theirs.shape and np.ptp(theirs) > 1
    seen = theirs > theirs.min(axis=1, keepdims=True)
    assert np.abs(mine - theirs)[seen].max() <= TOLERANCE
    assert (mine.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.98


@pytest.mark.parametrize("case", CASES)
def test_family(case: str, program: Path, tmp_path: Path) -> None:
    architecture, changes, settings = CASES[case]
    model = tiny.make(case, **SIZES, **changes)
    tensors = peer.tensors_of(model, architecture)
    peer.write_gguf(model, architecture, tmp_path / "model.gguf", settings, tensors)
    assert_agree(program, model, tmp_path)


@pytest.mark.parametrize(
    ("case", "split"),
    [
        ("deepseek_v2-greedy", False),
        ("deepseek_v2-greedy", True),
        ("deepseek_v3", False),
        ("deepseek_v3", True),
        ("deepseek_v32", True),
        ("glm_moe_dsa", True),
    ],
)
def test_latent_attention(case: str, split: bool, program: Path, tmp_path: Path) -> None:
    # llama.cpp has one epsilon for all norms
    changes: dict[str, Any] = {**SIZES, "rms_norm_eps": 1e-6}
    if case == "deepseek_v3":
        changes["rope_scaling"] = test_latent_gguf.GGUF_YARN
    if case in (
        "deepseek_v32",
        "glm_moe_dsa",
    ):  # it turns queries and keys by a matrix of 64 channels, which changes no score
        changes["index_head_dim"] = 64
    model = tiny.make(case, **changes)
    test_latent_gguf.write(model, tmp_path / "model.gguf", split)
    imported = test_latent_gguf.read(tmp_path / "model.gguf", tmp_path)
    assert_agree(program, imported, tmp_path)


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *((case, {}) for case in CASES),
        ("llama", {"rope.scaling.factor": 4.0}),
        ("qwen3", {"rope.scale_linear": 4.0}),
        ("qwen3", YARN),
        ("qwen3", {"rope.scaling.type": "yarn"}),
        ("qwen3", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
        ("gemma3_text", {"rope.scaling.factor": 4.0}),
        ("gemma3_text", {"rope.freq_base_swa": 777.0, "attention.sliding_window_pattern": 2}),
    ],
)
def test_what_an_import_makes_of_settings(
    case: str, settings: dict[str, Any], program: Path, tmp_path: Path
) -> None:
    architecture, changes, more = CASES[case]
    model = tiny.make(case, **SIZES, **changes)
    tensors = peer.tensors_of(model, architecture)
    peer.write_gguf(model, architecture, tmp_path / "model.gguf", {**more, **settings}, tensors)
    imported = test_latent_gguf.read(tmp_path / "model.gguf", tmp_path)
    if case == "gpt_oss":
        imported.hyperparameters["rope_scaling"]["truncate"] = True
    assert_agree(program, imported, tmp_path)


@pytest.mark.parametrize("case", hybrid.CASES)
def test_recurrent_layers(case: str, program: Path, tmp_path: Path) -> None:
    # llama.cpp has one size for the heads of keys and values
    values, tensors, _ = test_hybrid_checkpoints.gguf_model(
        case, linear_key_head_dim=16, linear_value_head_dim=16
    )
    model = tiny.Tiny(case, values, {}, None)
    architecture = test_hybrid_checkpoints.ARCHITECTURES[case]
    peer.write_gguf(model, architecture, tmp_path / "model.gguf", recurrent_settings(case, values), tensors)
    sink = DirectorySink(tmp_path)
    imported = import_gguf([tmp_path / "model.gguf"], sink)
    engine = test_hybrid.build(test_hybrid_checkpoints.read(sink, imported), graph_class("cython"), None)
    ids, theirs = peer.logprobs(program, tmp_path / "model.gguf", tmp_path)[0]
    wide = test_hybrid.run(engine, [(0, ids, 0)])[0].astype(np.float64)
    assert_near(log_softmax(wide), theirs)
