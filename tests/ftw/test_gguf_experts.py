"""ftd.ftw.gguf_experts: experts that the ``gguf`` package writes hold the values that it reads back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes
import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.errors import FtdError
from ftd.ftw import reader
from ftd.ftw.format import EXPERTS_MEDIA_TYPE
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.imported import ImportedModel
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix
from tests.ftw.moe_source import (
    ARCHITECTURES,
    EXPERTS,
    INTERLEAVED,
    C,
    D,
    E,
    F,
    G,
    H,
    S,
    Source,
)


@pytest.fixture
def bring(
    sink: DirectorySink, tmp_path: Path
) -> Callable[[Source], tuple[ImportedModel, dict[str, QuantMatrix], dict[int, reader.ExpertBank]]]:
    """Save a source, import it and load what came of it."""

    def run(source: Source) -> tuple[ImportedModel, dict[str, QuantMatrix], dict[int, reader.ExpertBank]]:
        imported = import_gguf([source.save(tmp_path / "moe.gguf")], sink)
        config = reader.read_config(sink.path(imported.config_digest))
        blobs = reader.load_blobs(
            config, {blob.digest: sink.path(blob.digest) for blob in config.blobs}, verify=True
        )
        return imported, reader.tensors(config, blobs), reader.expert_banks(config, blobs)

    return run


Bring = Callable[[Source], tuple[ImportedModel, dict[str, QuantMatrix], dict[int, reader.ExpertBank]]]


def half_split(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo the order of rows that the conversion scripts of llama.cpp give to the llama architecture."""
    return rows.reshape(heads, C // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_family_keeps_the_values_of_experts_and_of_all_else(architecture: str, bring: Bring) -> None:
    source = Source(architecture, {"down": "Q8_0", "up": "MXFP4"}).fill()
    imported, tensors, banks = bring(source)
    model_type, layer, _ = ARCHITECTURES[architecture]
    assert imported.config.architecture == model_type
    assert banks.keys() == {0, 1}
    for index, bank in banks.items():
        assert bank.num_experts == E
        for role in EXPERTS:
            wanted = source.values(f"blk.{index}.ffn_{role}_exps.weight")
            for expert in range(E):
                np.testing.assert_array_equal(dequantize(bank.matrix(role, expert)), wanted[expert])
                if architecture == "gpt-oss":
                    bias = source.values(f"blk.{index}.ffn_{role}_exps.bias")[expert]
                    np.testing.assert_array_equal(bank.matrix(f"{role}_bias", expert).planes[0][0], bias)
        for name, (ours, _) in layer.items():
            values = source.values(f"blk.{index}.{name}")
            if architecture in INTERLEAVED and name in ("attn_q.weight", "attn_k.weight"):
                values = half_split(values, H if "_q" in name else G)
            got = dequantize(tensors[f"model.layers.{index}.{ours}"])
            np.testing.assert_array_equal(got, values.reshape(got.shape))
    assert len(tensors) == 2 * len(layer) + 2
    assert [blob.media_type for blob in imported.blobs][1] == EXPERTS_MEDIA_TYPE
    assert imported.config.parameter_count == sum(source.values(name).size for name in source.raw)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_every_block_type_survives_in_a_record(kind: str, bring: Bring) -> None:
    source = Source("qwen3moe", {"gate": kind}).fill()
    _, _, banks = bring(source)
    wanted = source.values("blk.1.ffn_gate_exps.weight")
    for expert in range(E):
        np.testing.assert_array_equal(dequantize(banks[1].matrix("gate", expert)), wanted[expert])


def test_experts_of_floats_are_quantised_as_the_gguf_package_does(
    tmp_path: Path, sink: DirectorySink
) -> None:
    source = Source("qwen3moe", {"gate": "BF16", "up": "F16", "down": "F32"}).fill()
    random = np.random.default_rng(0)
    for name, (raw, kind) in list(source.raw.items()):
        if kind in ("Q4_0", "Q8_0"):
            shape = source.values(name).shape
            floats = gguf_bytes.blocks("F32", int(np.prod(shape[:-1])), shape[-1], random)
            source.raw[name] = (floats.reshape(*raw.shape[:-1], -1), "F32")
    imported = import_gguf([source.save(tmp_path / "m.gguf")], sink, quantization="q4_0")
    config = imported.config
    blobs = reader.load_blobs(config, {blob.digest: sink.path(blob.digest) for blob in config.blobs})
    bank = reader.expert_banks(config, blobs)[1]
    kind_of = gguf.GGMLQuantizationType.Q4_0
    for role in EXPERTS:
        wanted = gguf.dequantize(
            gguf.quantize(source.values(f"blk.1.ffn_{role}_exps.weight"), kind_of), kind_of
        )
        for expert in range(E):
            np.testing.assert_array_equal(dequantize(bank.matrix(role, expert)), wanted[expert])
    assert reader.tensors(config, blobs)["model.layers.0.mlp.gate.weight"].format == "f32"


def test_layers_may_differ_in_format_and_records_do_not_differ_in_size(bring: Bring) -> None:
    source = Source("qwen3moe", {"0.down": "Q8_0", "1.down": "Q4_0"}).fill()
    imported, _, banks = bring(source)
    assert [banks[layer].layout["down"].format for layer in (0, 1)] == ["q8_0", "q4_0"]
    assert banks[0].record_bytes == banks[1].record_bytes
    for layer in (0, 1):
        wanted = source.values(f"blk.{layer}.ffn_down_exps.weight")
        np.testing.assert_array_equal(dequantize(banks[layer].matrix("down", 3)), wanted[3])
    assert imported.config.experts is not None and len(imported.config.experts.layouts) == 2


def test_hyperparameters_of_routing_are_those_of_config_json(bring: Bring) -> None:
    imported, _, _ = bring(Source("granitemoe").fill())
    hyper = imported.config.hyperparameters
    assert {name: hyper[name] for name in ("num_experts", "num_experts_per_tok", "norm_topk_prob")} == {
        "num_experts": E,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }
    assert (hyper["moe_intermediate_size"], hyper["shared_expert_intermediate_size"]) == (F, S)
    assert (hyper["attention_multiplier"], hyper["embedding_multiplier"]) == (0.015625, 12.0)
    assert (hyper["residual_multiplier"], hyper["logits_scaling"]) == (0.25, 6.0)


def test_gpt_oss_alternates_windows_and_rotates_by_yarn(bring: Bring) -> None:
    imported, _, _ = bring(Source("gpt-oss").fill())
    hyper = imported.config.hyperparameters
    assert hyper["layer_types"] == ["sliding_attention", "full_attention"]
    assert (hyper["swiglu_limit"], hyper["swiglu_alpha"]) == (7.0, 1.702)
    assert hyper["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.1.ffn_up_exps.weight", None, "blk.1.ffn_up_exps.weight is missing"),
        ("blk.0.ffn_gate_inp.weight", None, "blk.0.ffn_gate_inp.weight is missing"),
        ("blk.1.ffn_up_exps.weight", (E + 1, F, D), r"dims \[128, 64, 5\] instead of \[128, 64, 4\]"),
        ("blk.1.ffn_up_exps.weight", (F, D), r"dims \[128, 64\] instead of"),
        ("blk.1.ffn_down_exps.weight", (E, F, D), r"blk.1.ffn_down_exps.weight has dims"),
        ("blk.1.ffn_gate_up_exps.weight", (E, F, D), "do not belong to a qwen3_moe model"),
        ("blk.2.ffn_up_exps.weight", (E, F, D), "do not belong to a qwen3_moe model"),
    ],
)
def test_malformed_experts_are_refused_by_name(
    name: str, shape: tuple[int, ...] | None, message: str, bring: Bring, sink: DirectorySink
) -> None:
    source = Source("qwen3moe").fill()
    source.raw.pop(name, None)
    if shape is not None:
        raw = gguf_bytes.blocks("Q4_0", int(np.prod(shape[:-1])), shape[-1], np.random.default_rng(0))
        source.raw[name] = (raw.reshape(*shape[:-1], -1), "Q4_0")
    with pytest.raises(FtdError, match=message):
        bring(source)
    assert list(sink.directory.iterdir()) == []


def glm_with_a_dense_layer() -> Source:
    """Return GLM with an mlp in its first layer and a last layer that only drafts."""
    source = Source("glm4moe", settings={"leading_dense_block_count": 1, "nextn_predict_layers": 1}).fill()
    random = np.random.default_rng(5)
    for name in list(source.raw):
        if name.startswith("blk.1."):
            source.raw[name.replace("blk.1", "blk.2")] = source.raw[name]
        if name.startswith("blk.0.ffn") or "blk.0.exp_probs" in name:
            del source.raw[name]
    for role, shape in (("gate", (3 * F, D)), ("up", (3 * F, D)), ("down", (D, 3 * F))):
        source._add(f"blk.0.ffn_{role}.weight", shape, "Q8_0", random)
    source._add("blk.2.nextn.eh_proj.weight", (D, 2 * D), "Q8_0", random)
    source.blocks = 3
    return source


def test_glm_has_mlps_first_and_layers_that_draft_are_left_out(bring: Bring) -> None:
    source = glm_with_a_dense_layer()
    imported, tensors, banks = bring(source)
    hyper = imported.config.hyperparameters
    assert (hyper["num_hidden_layers"], hyper["first_k_dense_replace"], list(banks)) == (2, 1, [1])
    for name, ours in (("gate", "gate_proj"), ("down", "down_proj")):
        got = dequantize(tensors[f"model.layers.0.mlp.{ours}.weight"])
        np.testing.assert_array_equal(got, source.values(f"blk.0.ffn_{name}.weight"))
    wanted = source.values("blk.1.ffn_down_exps.weight")
    np.testing.assert_array_equal(dequantize(banks[1].matrix("down", E - 1)), wanted[E - 1])
    assert not [name for name in tensors if name.startswith("model.layers.2")]
    assert hyper["shared_expert_intermediate_size"] == F
    assert (hyper["n_group"], hyper["topk_group"], hyper["routed_scaling_factor"]) == (2, 1, 1.5)
    assert (hyper["partial_rotary_factor"], hyper["use_qk_norm"]) == (0.5, True)


def test_a_layer_behind_those_that_draft_is_refused(bring: Bring) -> None:
    source = glm_with_a_dense_layer()
    source.raw["blk.3.attn_norm.weight"] = source.raw["blk.2.attn_norm.weight"]
    with pytest.raises(FtdError, match=r"do not belong to a glm4_moe model: blk.3.attn_norm.weight"):
        bring(source)


def split(source: Source) -> Source:
    """Give each expert a tensor of its own, as files of before 2024 do."""
    for name in list(source.raw):
        if "_exps." in name:
            stacked, kind = source.raw.pop(name)
            for expert in range(E):
                source.raw[name.replace("_exps.", f".{expert}.")] = (stacked[expert], kind)
    return source


def joined(source: Source) -> Source:
    """Put the rows of up behind those of gate."""
    for layer in range(2):
        parts = [source.raw.pop(f"blk.{layer}.ffn_{role}_exps.weight") for role in ("gate", "up")]
        source.raw[f"blk.{layer}.ffn_gate_up_exps.weight"] = (
            np.concatenate([raw for raw, _ in parts], axis=1),
            parts[0][1],
        )
    return source


@pytest.mark.parametrize("change", [split, joined])
@pytest.mark.parametrize("kind", ["Q4_0", "F16", "F32"])
def test_experts_stored_otherwise_become_the_same_blobs(
    change: Callable[[Source], Source], kind: str, bring: Bring
) -> None:
    kinds = dict.fromkeys(EXPERTS, kind)
    wanted, _, _ = bring(Source("llama", kinds).fill())
    ours, _, _ = bring(change(Source("llama", kinds).fill()))
    assert [blob.digest for blob in ours.blobs] == [blob.digest for blob in wanted.blobs]
    assert ours.config.parameter_count == wanted.config.parameter_count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("blk.1.ffn_up.2.weight"), "tensor blk.1.ffn_up.2.weight is missing"),
        (lambda raw: raw.pop("blk.1.ffn_up.0.weight"), "tensor blk.1.ffn_up_exps.weight is missing"),
        (
            lambda raw: raw.update({"blk.0.ffn_down.3.weight": raw["blk.0.ffn_up.3.weight"]}),
            "tensor blk.0.ffn_down.3.weight has dims",
        ),
        (
            lambda raw: raw.update({"blk.0.ffn_down.4.weight": raw["blk.0.ffn_down.3.weight"]}),
            "do not belong to a mixtral model: blk.0.ffn_down.4.weight",
        ),
        (
            lambda raw: raw.update(
                {"blk.0.ffn_up.1.weight": (gguf_bytes.blocks("Q8_0", F, D, np.random.default_rng(0)), "Q8_0")}
            ),
            "experts differ in type: blk.0.ffn_up.1.weight is Q8_0, blk.0.ffn_up.0.weight Q4_0",
        ),
    ],
)
def test_malformed_tensors_of_single_experts_are_refused_by_name(
    change: Callable[[dict[str, Any]], object], message: str, bring: Bring, sink: DirectorySink
) -> None:
    source = split(Source("llama").fill())
    change(source.raw)
    with pytest.raises(FtdError, match=message):
        bring(source)
    assert list(sink.directory.iterdir()) == []
