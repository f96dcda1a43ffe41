"""Recurrent families as transformers and GGUF files have them, imported and run: logits against transformers.

The GGUF files are written with the ``gguf`` package after the description of llama.cpp's conversion: norms
with one added, -exp(A_log), value heads tiled over the key heads (Qwen3.5), b and a in one (Qwen3-Next).
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import tokenizer_json

from ftd.engine import loader
from ftd.errors import InvalidCheckpoint, InvalidGguf
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.imported import ImportedModel
from ftd.ftw.sink import DirectorySink
from ftd.kernels._graph_cy import CpuGraph
from tests.engine import hybrid
from tests.engine.test_hybrid import IDS, assert_close, build, run
from tests.engine.tiny import Tiny

SPECIAL = {"vocab_size": 288, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5_moe": "qwen35moe", "qwen3_5": "qwen35"}
Array = NDArray[np.float32]


def read(sink: DirectorySink, imported: ImportedModel) -> Tiny:
    """Return an imported model as the engine finds it."""
    path = sink.path(imported.config_digest)
    config = loader.Files(path, {}).config
    files = loader.Files(path, {blob.digest: sink.path(blob.digest) for blob in config.blobs})
    weights = files.read(lambda done, total: None).weights
    hyper = dict(config.hyperparameters)
    return Tiny(config.architecture, hyper, dict(weights.tensors), None, tuple(weights.banks.values()))


def checkpoint(oracle: Any, folder: Path) -> dict[str, Path]:
    """Write a checkpoint and return its files."""
    oracle.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("case", hybrid.CASES)
def test_an_imported_checkpoint_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    values, oracle = hybrid.oracle_of(case, **SPECIAL)
    expected = Tiny(case, values, {}, oracle).logits(IDS[:60])
    sink = DirectorySink(tmp_path)
    imported = import_safetensors(checkpoint(oracle, tmp_path / "checkpoint"), sink)
    model = read(sink, imported)
    assert model.architecture == case
    assert_close(run(build(model, CpuGraph, None), [(0, IDS[:60], 0)])[0], expected)


def test_of_a_model_of_text_and_pictures_the_text_is_imported(tmp_path: Path) -> None:
    import torch
    import transformers

    values, text = hybrid.oracle_of("qwen3_5_moe", **SPECIAL)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3_5MoeConfig(
        text_config=text.config.to_dict(), vision_config=vision, tie_word_embeddings=True
    )
    torch.manual_seed(2)
    whole = transformers.Qwen3_5MoeForConditionalGeneration(config).float().eval()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    sink = DirectorySink(tmp_path)
    files = checkpoint(whole, tmp_path / "checkpoint")
    model = read(sink, import_safetensors(files, sink))
    assert model.architecture == "qwen3_5_moe" and not any("visual" in name for name in model.tensors)
    expected = Tiny("qwen3_5_moe", values, {}, text).logits(IDS[:40])
    assert_close(run(build(model, CpuGraph, None), [(0, IDS[:40], 0)])[0], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 3}, "multiple of linear_num_key_heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"linear_value_head_dim": 41}, r"linear_attn\.\w+.* has shape"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor"),
    ],
)
def test_checkpoints_that_cannot_be(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    import json

    files = checkpoint(hybrid.oracle_of("qwen3_5", **SPECIAL)[1], tmp_path / "checkpoint")
    config = json.loads(files["config.json"].read_text()) | changes
    files["config.json"].write_text(json.dumps(config))
    with pytest.raises(InvalidCheckpoint, match=message):
        import_safetensors(files, DirectorySink(tmp_path))
    assert not list(tmp_path.glob("sha256*"))


def tiled(values: dict[str, Any], width: int) -> NDArray[np.int64]:
    """Return where each of the tiled value heads of ``width`` rows comes from."""
    heads = np.arange(values["linear_num_value_heads"]).reshape(values["linear_num_key_heads"], -1)
    order = heads.T.reshape(-1)
    rows: NDArray[np.int64] = (order[:, None] * width + np.arange(width)).reshape(-1)
    return rows


def gguf_tensors(case: str, values: dict[str, Any], state: dict[str, Array]) -> dict[str, Array]:
    """Return the tensors of a GGUF file by name, for transformers' ``state``."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[case].upper()], len(hybrid.LAYERS))
    tensors: dict[str, Array] = {}
    for name, tensor in state.items():
        stem = "blk." + name.removeprefix("model.layers.").partition(".")[0]
        if name.endswith("mlp.experts.gate_up_proj"):
            halves = np.split(tensor, 2, axis=1)
            tensors |= {f"{stem}.ffn_gate_exps.weight": halves[0], f"{stem}.ffn_up_exps.weight": halves[1]}
        elif name.endswith("mlp.experts.down_proj"):
            tensors[f"{stem}.ffn_down_exps.weight"] = tensor
        elif name.endswith("in_proj_qkvz.weight"):
            parts = list(hybrid.ours(name, tensor, values).values())
            tensors |= {f"{stem}.attn_qkv.weight": parts[0], f"{stem}.attn_gate.weight": parts[1]}
        else:
            theirs = name.replace(".dt_bias", ".dt_proj.bias")
            found = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            as_rows = changed(case, name, tensor, values)
            # the gate of the shared expert is a vector in some files and a matrix of one row in others
            tensors[found] = as_rows if case == "qwen3_next" and len(as_rows) == 1 else as_rows.squeeze()
    return tensors


def changed(case: str, name: str, tensor: Array, values: dict[str, Any]) -> Array:
    """Return what the conversion makes of one tensor."""

    def moved(width: int) -> Any:
        return slice(None) if case == "qwen3_next" else tiled(values, width)

    channels, last = values["linear_value_head_dim"], name.rpartition("linear_attn.")[2]
    if last == "A_log":
        return -np.exp(tensor)[moved(1)]
    if last in ("dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
        return tensor[moved(1)]
    if last == "in_proj_z.weight":
        return tensor[moved(channels)]
    if last in ("in_proj_qkv.weight", "conv1d.weight"):
        keys = 2 * values["linear_num_key_heads"] * values["linear_key_head_dim"]
        return np.concatenate([tensor[:keys], tensor[keys:][moved(channels)]])
    if last == "out_proj.weight":
        return tensor[:, moved(channels)]
    return tensor + 1 if name.endswith("norm.weight") and last != "norm.weight" else tensor


def write_gguf(path: Path, case: str, values: dict[str, Any], tensors: dict[str, Array], **more: Any) -> None:
    """Write a GGUF file of float32 with a vocabulary of bytes."""
    writer = gguf.GGUFWriter(path, ARCHITECTURES[case])
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(values["num_attention_heads"])
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_key_length(values["head_dim"])
    writer.add_value_length(values["head_dim"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    writer.add_rope_freq_base(values["rope_theta"])
    writer.add_rope_dimension_count(int(values["head_dim"] * values["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(values["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(values["linear_key_head_dim"])
    writer.add_ssm_group_count(values["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values["linear_num_value_heads"])
    writer.add_ssm_inner_size(values["linear_num_value_heads"] * values["linear_value_head_dim"])
    if case != "qwen3_5":
        writer.add_expert_count(values["num_experts"])
        writer.add_expert_used_count(values["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(values["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(values["shared_expert_intermediate_size"])
    layers = [kind == "linear_attention" for kind in hybrid.LAYERS]
    writer.add_array(f"{ARCHITECTURES[case]}.attention.recurrent_layers", more.get("layers", layers))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"<{i}>" for i in range(values["vocab_size"])])
    writer.add_token_types([1] * values["vocab_size"])
    writer.add_token_merges(["< 1"])
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_model(case: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Array], Any]:
    """Return settings, GGUF tensors and transformers' model."""
    values, oracle = hybrid.oracle_of(case, **SPECIAL, **changes)
    state = {name: tensor.numpy() for name, tensor in oracle.state_dict().items()}
    if values["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    return values, gguf_tensors(case, values, state), oracle


@pytest.mark.parametrize("case", hybrid.CASES)
def test_an_imported_gguf_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    # llama.cpp has one size for the heads of keys and values
    values, tensors, oracle = gguf_model(case, linear_value_head_dim=24)
    write_gguf(tmp_path / "model.gguf", case, values, tensors)
    sink = DirectorySink(tmp_path)
    model = read(sink, import_gguf([tmp_path / "model.gguf"], sink))
    assert model.architecture == case
    expected = Tiny(case, values, {}, oracle).logits(IDS[:60])
    assert_close(run(build(model, CpuGraph, None), [(0, IDS[:60], 0)])[0], expected)


def test_older_gguf_files_of_qwen3_next(tmp_path: Path) -> None:
    """Queries, keys, values and z in one tensor, as checkpoints have them."""
    values, tensors, oracle = gguf_model("qwen3_next", linear_value_head_dim=24)
    for name, tensor in oracle.state_dict().items():
        if name.endswith("in_proj_qkvz.weight"):
            stem = "blk." + name.split(".")[2]
            del tensors[f"{stem}.attn_qkv.weight"], tensors[f"{stem}.attn_gate.weight"]
            tensors[f"{stem}.ssm_in.weight"] = tensor.numpy()
    write_gguf(tmp_path / "model.gguf", "qwen3_next", values, tensors)
    sink = DirectorySink(tmp_path)
    model = read(sink, import_gguf([tmp_path / "model.gguf"], sink))
    expected = Tiny("qwen3_next", values, {}, oracle).logits(IDS[:60])
    assert_close(run(build(model, CpuGraph, None), [(0, IDS[:60], 0)])[0], expected)


def test_gguf_files_that_cannot_be(tmp_path: Path) -> None:
    values, tensors, _ = gguf_model("qwen3_5", linear_value_head_dim=24)
    broken: list[tuple[dict[str, Array], dict[str, Any], str]] = [
        ({**tensors, "blk.0.ssm_a": np.zeros(3, np.float32)}, {}, "ssm_a has dims"),
        ({**tensors, "blk.2.attn_q.weight": np.zeros((128, 64), np.float32)}, {}, "attn_q.weight has dims"),
        ({name: tensor for name, tensor in tensors.items() if "ssm_beta" not in name}, {}, "ssm_beta"),
        (tensors, {"layers": [True, False]}, "recurrent_layers has 2 entries for 4 layers"),
        (tensors, {"layers": [True, True, True, True]}, "attn_qkv"),
    ]
    for i, (changed, more, message) in enumerate(broken):
        path = tmp_path / f"{i}.gguf"
        write_gguf(path, "qwen3_5", values, changed, **more)
        with pytest.raises(InvalidGguf, match=message):
            import_gguf([path], DirectorySink(tmp_path))
