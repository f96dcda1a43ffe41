"""DeepSeek as GGUF by the gguf package, keys and values in one matrix or two: logits against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine import loader
from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw import reader
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.sink import DirectorySink
from tests.engine import peer, tiny
from tests.engine.test_model import PROMPT, assert_close, build, graph_class, run

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors_of(oracle: Any, split: bool) -> dict[str, NDArray[np.float32]]:
    """Return the model's tensors under GGUF's names; ``split``: keys' and values' parts of kv_b apart."""
    found: dict[str, NDArray[np.float32]] = {}
    config = oracle.config
    for name, parameter in oracle.state_dict().items():
        values = parameter.numpy()
        stem, _, kind = name.rpartition(".")
        if stem in OUTER:
            found[f"{OUTER[stem]}.{kind}"] = values
            continue
        layer, _, inner = stem.removeprefix("model.layers.").partition(".")
        block = f"blk.{layer}."
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(values, 2, axis=1)
            found |= {f"{block}ffn_gate_exps.weight": gate, f"{block}ffn_up_exps.weight": up}
        elif name.endswith("experts.down_proj"):
            found[f"{block}ffn_down_exps.weight"] = values
        elif kind == "e_score_correction_bias":
            found[f"{block}exp_probs_b.bias"] = values
        elif inner == "self_attn.kv_b_proj" and split:
            heads = values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, theirs = np.split(heads, [config.qk_nope_head_dim], axis=1)
            found[f"{block}attn_k_b.weight"] = np.ascontiguousarray(keys.transpose(0, 2, 1))
            found[f"{block}attn_v_b.weight"] = np.ascontiguousarray(theirs)
        else:
            found[f"{block}{NAMES[inner]}.{kind}"] = values
    return found


def sizes_of(config: Any, split: bool) -> dict[str, Any]:
    """Return the metadata of a model as llama.cpp's converter writes it, without the architecture's name."""
    query = config.qk_nope_head_dim + config.qk_rope_head_dim
    row = config.kv_lora_rank + config.qk_rope_head_dim
    is_v3 = config.model_type != "deepseek_v2"
    found: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1 if split else config.num_attention_heads,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": row if split else query,
        "attention.value_length": config.kv_lora_rank if split else config.v_head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.freq_base": 10000.0,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_gating_func": 2 if is_v3 else 1,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": is_v3,
    }
    if split:
        found |= {"attention.key_length_mla": query, "attention.value_length_mla": config.v_head_dim}
    if config.model_type in ("deepseek_v32", "glm_moe_dsa"):
        found |= {
            "attention.indexer.head_count": config.index_n_heads,
            "attention.indexer.key_length": config.index_head_dim,
            "attention.indexer.top_k": config.index_topk,
        }
    if config.model_type == "glm_moe_dsa":
        found["attention.indexer.types"] = [kind == "full" for kind in config.indexer_types]
    if config.q_lora_rank:
        found["attention.q_lora_rank"] = config.q_lora_rank
    if config.rope_parameters["rope_type"] == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(config.rope_parameters["factor"]),
            "rope.scaling.original_context_length": config.rope_parameters[
                "original_max_position_embeddings"
            ],
            "rope.scaling.yarn_log_multiplier": 0.1 * config.rope_parameters["mscale_all_dim"],
        }
    return found


def write(model: tiny.Tiny, path: Path, split: bool, **changes: Any) -> None:
    """Write ``model``, with ``changes`` to its metadata."""
    settings = sizes_of(model.oracle.config, split) | changes
    names = {"deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa"}
    architecture = names.get(model.oracle.config.model_type, "deepseek2")
    peer.write_gguf(model, architecture, path, settings, tensors_of(model.oracle, split))


def read(path: Path, folder: Path) -> tiny.Tiny:
    """Import a GGUF file; return what the engine reads."""
    sink = DirectorySink(folder)
    imported = import_gguf([path], sink)
    config = reader.read_config(sink.path(imported.config_digest))
    paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
    weights = loader.Files(sink.path(imported.config_digest), paths).read(lambda done, total: None).weights
    hyper = dict(config.hyperparameters)
    return tiny.Tiny(config.architecture, hyper, dict(weights.tensors), None, tuple(weights.banks.values()))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "case", ["deepseek_v2", "deepseek_v2-greedy", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"]
)
def test_logits_are_those_of_transformers(case: str, split: bool, tmp_path: Path) -> None:
    oracle = tiny.make(case, rope_scaling=GGUF_YARN) if case == "deepseek_v3" else tiny.make(case)
    write(oracle, tmp_path / "model.gguf", split)
    model = build(read(tmp_path / "model.gguf", tmp_path), graph_class("cython"))
    assert_close(run(model, [(0, PROMPT, 0)]), oracle.logits(PROMPT))


def test_ollamas_files_of_glm_lite_are_the_same_model(tmp_path: Path) -> None:
    oracle = tiny.make("deepseek_v3", n_group=1, topk_group=1, rope_scaling=None)
    settings = sizes_of(oracle.oracle.config, split=True)
    for name in ("attention.key_length", "attention.value_length"):
        settings[name], settings[f"{name}_mla"] = settings[f"{name}_mla"], settings[name]
    for name in (
        "expert_group_count",
        "expert_group_used_count",
        "expert_gating_func",
        "expert_weights_norm",
    ):
        del settings[name]
    settings["attention.head_count_kv"] = oracle.oracle.config.num_attention_heads
    path = tmp_path / "model.gguf"
    peer.write_gguf(oracle, "glm4moelite", path, settings, tensors_of(oracle.oracle, split=True))
    model = build(read(path, tmp_path), graph_class("cython"))
    assert_close(run(model, [(0, PROMPT, 0)]), oracle.logits(PROMPT))


# A file has one number for both magnitudes, because published models have the same
GGUF_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.8,
    "mscale_all_dim": 0.8,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention.kv_lora_rank": 31}, InvalidGguf, "has dims"),
        ({"attention.key_length": 8}, InvalidGguf, "must exceed the 8 channels that rotate: 8"),
        ({"attention.q_lora_rank": 0}, InvalidGguf, "q_lora_rank"),
        ({"expert_gating_func": 3}, Unsupported, "gating function of experts: 3"),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, int], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write(tiny.make("deepseek_v2-greedy"), tmp_path / "model.gguf", False, **changes)
    with pytest.raises(error, match=message):
        import_gguf([tmp_path / "model.gguf"], DirectorySink(tmp_path))
