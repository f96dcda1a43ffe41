"""ftd.ftw.import_safetensors: planes are the bits that transformers saved, experts those of its modules."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest
from checkpoint_bytes import C, D, E, F, G, H
from numpy.typing import NDArray
from safetensors import safe_open

from ftd.errors import FtdError, InvalidCheckpoint, Unsupported
from ftd.ftw import reader
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.imported import ImportedModel
from ftd.ftw.quantize import as_f32, quantize
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix

Result = tuple[ImportedModel, dict[str, QuantMatrix], dict[int, reader.ExpertBank]]
Bring = Callable[..., Result]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@pytest.fixture
def bring(sink: DirectorySink) -> Bring:
    """Import files and load what came of them."""

    def run(files: dict[str, Path], **more: Any) -> Result:
        imported = import_safetensors(files, sink, **more)
        config = reader.read_config(sink.path(imported.config_digest))
        assert config == imported.config
        paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
        blobs = reader.load_blobs(config, paths, verify=True)
        return imported, reader.tensors(config, blobs), reader.expert_banks(config, blobs)

    return run


def bits(matrix: QuantMatrix) -> bytes:
    """Return the bytes of the only plane of a float matrix."""
    (plane,) = matrix.planes
    return plane.tobytes()


def test_a_dense_model_keeps_its_bits_whatever_the_shards(tmp_path: Path, bring: Bring) -> None:
    config, wanted = checkpoint_bytes.llama()
    whole, tensors, banks = bring(checkpoint_bytes.save(tmp_path / "a", config, wanted))
    sharded, _, _ = bring(checkpoint_bytes.save(tmp_path / "b", config, wanted, shards=3))
    assert [blob.digest for blob in whole.blobs] == [blob.digest for blob in sharded.blobs]
    assert banks == {}
    assert tensors.keys() == wanted.keys()
    for name, matrix in tensors.items():
        if wanted[name].ndim == 1:
            assert matrix.format == "f32"
            np.testing.assert_array_equal(matrix.planes[0][0], as_f32(wanted[name]))
        else:
            assert (matrix.format, bits(matrix)) == ("bf16", wanted[name].tobytes())
    assert whole.config.parameter_count == sum(array.size for array in wanted.values())
    assert (whole.config.quantization, whole.config.architecture) == ("BF16", "llama")


def test_experts_with_a_tensor_each(tmp_path: Path, bring: Bring) -> None:
    config, wanted = checkpoint_bytes.mixtral()
    imported, tensors, banks = bring(checkpoint_bytes.save(tmp_path / "m", config, wanted))
    prefix = "model.layers.0.block_sparse_moe"
    for role, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        for expert in range(E):
            source = wanted[f"{prefix}.experts.{expert}.{name}.weight"]
            assert bits(banks[0].matrix(role, expert)) == source.tobytes()
    assert bits(tensors["model.layers.0.mlp.gate.weight"]) == wanted[f"{prefix}.gate.weight"].tobytes()
    hyper = imported.config.hyperparameters
    assert (hyper["num_experts"], hyper["num_experts_per_tok"], hyper["norm_topk_prob"]) == (E, 2, True)
    assert hyper["moe_intermediate_size"] == F


def mxfp4_values(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return what transformers makes of an mxfp4 tensor: byte j has values 2j (low nibble) and 2j + 1."""
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*blocks.shape[:-1], 32)
    values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    return np.ldexp(values, scales[..., None].astype(int) - 127).reshape(*blocks.shape[:-2], -1)


def test_mxfp4_experts_of_gpt_oss(tmp_path: Path, bring: Bring) -> None:
    config, wanted = checkpoint_bytes.gpt_oss()
    imported, tensors, banks = bring(checkpoint_bytes.save(tmp_path / "m", config, wanted))
    stem = "model.layers.0.mlp.experts."
    gate_up = mxfp4_values(wanted[f"{stem}gate_up_proj_blocks"], wanted[f"{stem}gate_up_proj_scales"])
    down = mxfp4_values(wanted[f"{stem}down_proj_blocks"], wanted[f"{stem}down_proj_scales"])
    biases = as_f32(wanted[f"{stem}gate_up_proj_bias"])
    bank = banks[0]
    for expert in range(E):
        for role, values in (("gate", gate_up[:, ::2]), ("up", gate_up[:, 1::2]), ("down", down)):
            assert bank.layout[role].format == "mxfp4"
            np.testing.assert_array_equal(dequantize(bank.matrix(role, expert)), values[expert])
        np.testing.assert_array_equal(bank.matrix("gate_bias", expert).planes[0][0], biases[expert, ::2])
        np.testing.assert_array_equal(bank.matrix("up_bias", expert).planes[0][0], biases[expert, 1::2])
    np.testing.assert_array_equal(
        bank.matrix("down_bias", 3).planes[0][0], as_f32(wanted[f"{stem}down_proj_bias"])[3]
    )
    sinks = tensors["model.layers.0.self_attn.sinks"].planes[0]
    np.testing.assert_array_equal(sinks[0], as_f32(wanted["model.layers.0.self_attn.sinks"]))
    assert "model.layers.0.mlp.gate.bias" in tensors
    assert (imported.config.hyperparameters["swiglu_limit"], imported.config.quantization) == (7.0, "BF16")


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_quantisation_takes_all_matrices_but_the_router(tmp_path: Path, bring: Bring, format: str) -> None:
    config, wanted = checkpoint_bytes.mixtral()
    files = checkpoint_bytes.save(tmp_path / "m", config, wanted)
    imported, tensors, banks = bring(files, quantization=format)
    source = wanted["model.layers.0.block_sparse_moe.experts.2.w2.weight"]
    ours, reference = banks[0].matrix("down", 2), quantize(as_f32(source), format)
    assert [plane.tobytes() for plane in ours.planes] == [plane.tobytes() for plane in reference.planes]
    assert tensors["model.layers.0.self_attn.q_proj.weight"].format == format
    assert tensors["model.embed_tokens.weight"].format == "q8_0"
    assert tensors["model.layers.0.mlp.gate.weight"].format == "bf16"
    assert imported.config.quantization == format.upper()


def test_a_head_that_copies_the_embedding_is_left_out(tmp_path: Path, bring: Bring) -> None:
    config, wanted = checkpoint_bytes.llama()
    wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"]
    _, tensors, _ = bring(checkpoint_bytes.save(tmp_path / "a", config, wanted))
    assert "lm_head.weight" not in tensors
    del config["tie_word_embeddings"]
    imported, tensors, _ = bring(checkpoint_bytes.save(tmp_path / "b", config, wanted))
    assert imported.config.hyperparameters["tie_word_embeddings"] is False
    assert "lm_head.weight" in tensors


def test_progress_ends_at_the_bytes_of_all_tensors(tmp_path: Path, bring: Bring) -> None:
    config, wanted = checkpoint_bytes.gpt_oss()
    seen: list[tuple[int, int]] = []
    files = checkpoint_bytes.save(tmp_path / "m", config, wanted)
    bring(files, progress=lambda *pair: seen.append(pair))
    total = sum(array.nbytes for array in wanted.values())
    assert seen == sorted(seen) and seen[-1] == (total, total)


def test_memory_stays_far_below_one_layer(tmp_path: Path, sink: DirectorySink) -> None:
    config, tensors = checkpoint_bytes.mixtral()
    hidden, inner, experts = D, 512, 128
    prefix = "model.layers.0.block_sparse_moe"
    tensors = {name: array for name, array in tensors.items() if "experts" not in name}
    tensors[f"{prefix}.gate.weight"] = np.zeros((experts, hidden), np.uint16)
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = np.zeros((experts, 2 * inner, hidden), np.uint16)
    tensors["model.layers.0.mlp.experts.down_proj"] = np.zeros((experts, hidden, inner), np.uint16)
    config |= {"num_local_experts": experts, "intermediate_size": inner}
    files = checkpoint_bytes.save(tmp_path / "m", config, tensors)
    layer_bytes = experts * 3 * inner * hidden * 2
    tracemalloc.start()
    try:
        import_safetensors(files, sink)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < layer_bytes / 4


EXPERT = "model.layers.0.block_sparse_moe.experts.3.w2.weight"


@pytest.mark.parametrize(
    ("change", "more", "error", "message"),
    [
        (lambda tensors: tensors.pop(EXPERT), {}, InvalidCheckpoint, f"tensor {EXPERT} is missing"),
        (
            lambda tensors: tensors.update({EXPERT: tensors[EXPERT].T}),
            {},
            InvalidCheckpoint,
            r"w2.weight has shape \[32, 64\] instead of \[64, 32\]",
        ),
        (
            lambda tensors: tensors.update({EXPERT: tensors[EXPERT].view(np.float16)}),
            {},
            InvalidCheckpoint,
            "experts differ in dtype",
        ),
        (
            lambda tensors: tensors.update({EXPERT: np.zeros((D, F), np.uint8)}),
            {},
            Unsupported,
            "a dtype that ftd cannot run: U8",
        ),
        (
            lambda tensors: tensors.update({EXPERT.replace(".3.", ".4."): tensors[EXPERT]}),
            {},
            InvalidCheckpoint,
            "1 tensors do not belong to a mixtral model: .*experts.4.w2",
        ),
        (lambda tensors: tensors.pop("model.norm.weight"), {}, InvalidCheckpoint, "norm.weight is missing"),
        (None, {"tie_word_embeddings": False}, InvalidCheckpoint, "lm_head.weight is missing"),
        (None, {"num_local_experts": 5}, InvalidCheckpoint, "gate.weight has shape"),
        (None, {"num_experts_per_tok": 5}, InvalidCheckpoint, "a token uses 5 of 4 experts"),
        (None, {"num_local_experts": None}, InvalidCheckpoint, "num_experts of config.json is not between"),
        (
            None,
            {"num_hidden_layers": 2},
            InvalidCheckpoint,
            "model.layers.1.input_layernorm.weight is missing",
        ),
        (None, {"num_hidden_layers": 1 << 40}, InvalidCheckpoint, "num_hidden_layers of config.json"),
        (None, {"hidden_size": -1}, InvalidCheckpoint, "hidden_size of config.json is not between"),
        (None, {"hidden_size": "64"}, InvalidCheckpoint, "hidden_size of config.json is not between"),
        (None, {"num_key_value_heads": 3}, InvalidCheckpoint, "do not share"),
        (
            None,
            {"rms_norm_eps": 0},
            InvalidCheckpoint,
            "rms_norm_eps of config.json is not a positive number",
        ),
        (None, {"tie_word_embeddings": 1}, InvalidCheckpoint, "is not a bool"),
        (None, {"model_type": "rwkv"}, Unsupported, "architecture is not supported: 'rwkv'"),
        (None, {"model_type": 3}, InvalidCheckpoint, "model_type of config.json is not a string"),
        (None, {"mlp_only_layers": [0]}, Unsupported, "layers without experts"),
        (None, {"clip_qkv": 8.0}, Unsupported, "clip_qkv"),
        (None, {"quantization_config": {"quant_method": "fp8"}}, Unsupported, "quantised by 'fp8'"),
    ],
)
def test_a_checkpoint_with_one_fault_is_refused_and_leaves_nothing(
    change: Callable[[dict[str, Any]], object] | None,
    more: dict[str, Any],
    error: type[FtdError],
    message: str,
    tmp_path: Path,
    sink: DirectorySink,
) -> None:
    config, tensors = checkpoint_bytes.mixtral()
    if change:
        change(tensors)
    files = checkpoint_bytes.save(tmp_path / "m", config | more, tensors)
    with pytest.raises(error, match=message):
        import_safetensors(files, sink)
    assert list(sink.directory.iterdir()) == []


def test_an_unknown_quantisation_is_refused(tmp_path: Path, sink: DirectorySink) -> None:
    files = checkpoint_bytes.save(tmp_path / "m", *checkpoint_bytes.llama())
    with pytest.raises(Unsupported, match="quantisation is not supported: q3_k"):
        import_safetensors(files, sink, quantization="q3_k")


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
MOE: dict[str, Any] = {"num_experts_per_tok": 2, "intermediate_size": F}
# model_type -> class prefix in transformers, settings of a tiny model
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"intermediate_size": 96, "head_dim": C}),
    "qwen2": ("Qwen2", {"intermediate_size": 96}),
    "qwen3": ("Qwen3", {"intermediate_size": 96, "head_dim": 32}),
    "gemma3_text": ("Gemma3", {"intermediate_size": 96, "head_dim": 32, "sliding_window": 16}),
    "qwen3_moe": ("Qwen3Moe", {**MOE, "head_dim": 32, "moe_intermediate_size": F, "num_experts": E}),
    "qwen2_moe": (
        "Qwen2Moe",
        {**MOE, "moe_intermediate_size": F, "shared_expert_intermediate_size": 96, "num_experts": E},
    ),
    "mixtral": ("Mixtral", {**MOE, "num_local_experts": E}),
    "olmoe": ("Olmoe", {**MOE, "num_experts": E}),
    "granitemoe": ("GraniteMoe", {**MOE, "num_local_experts": E}),
    "granitemoeshared": ("GraniteMoeShared", {**MOE, "num_local_experts": E, "shared_intermediate_size": 96}),
    "gpt_oss": ("GptOss", {**MOE, "head_dim": 32, "num_local_experts": E, "sliding_window": 8}),
}


def build(model_type: str, dtype: str) -> Any:
    """Return a random model of transformers with parameters of ``dtype``."""
    import torch
    import transformers

    torch.manual_seed(0)
    prefix, settings = TRANSFORMERS[model_type]
    config_name = "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config"
    config = getattr(transformers, config_name)(**SIZES, **settings)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).to(getattr(torch, dtype))
    for parameter in model.parameters():  # norms are all ones and biases zero otherwise
        torch.nn.init.normal_(parameter)
    return model


def expected_experts(state: dict[str, Any], model_type: str, layer: int) -> dict[str, Any]:
    """Return gate, up [E, F, D] and down [E, D, F] from the names and layouts of transformers' modules."""
    block = "block_sparse_moe" if model_type.startswith("granite") else "mlp"
    stem = f"model.layers.{layer}.{block}.experts."
    gate_up, down = state[f"{stem}gate_up_proj"], state[f"{stem}down_proj"]
    if model_type == "gpt_oss":
        gate_up = gate_up.transpose(1, 2)
        return {"gate": gate_up[:, ::2], "up": gate_up[:, 1::2], "down": down.transpose(1, 2)}
    return {"gate": gate_up[:, :F], "up": gate_up[:, F:], "down": down}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("model_type", TRANSFORMERS)
def test_what_transformers_saved_is_what_is_imported(
    model_type: str, dtype: str, tmp_path: Path, bring: Bring
) -> None:
    model = build(model_type, dtype)
    model.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    files = {path.name: path for path in (tmp_path / "hf").iterdir()}
    (tmp_path / "tokenizer.json").write_text(checkpoint_bytes.json.dumps(checkpoint_bytes.TOKENIZER))
    imported, tensors, banks = bring({**files, "tokenizer.json": tmp_path / "tokenizer.json"})
    state = {name: tensor.float() for name, tensor in model.state_dict().items()}
    for layer, bank in banks.items():
        for role, wanted in expected_experts(state, model_type, layer).items():
            for expert in range(E):
                got = dequantize(bank.matrix(role, expert))
                np.testing.assert_array_equal(got, wanted[expert].numpy())
    assert len(banks) == (2 if "num_experts_per_tok" in TRANSFORMERS[model_type][1] else 0)
    compared = 0
    for name, matrix in tensors.items():
        source = name
        if name not in state:
            source = name.replace("mlp.gate.", "mlp.router.")
        if source not in state:
            source = name.replace("mlp.gate.", "block_sparse_moe.router.")
        if "shared_expert." in name and model_type.startswith("granite"):
            continue
        wanted = state[source].numpy()
        if model_type == "gemma3_text" and name.endswith("norm.weight"):
            wanted = wanted + np.float32(1)
        got = dequantize(matrix)
        np.testing.assert_array_equal(got, wanted.reshape(got.shape), err_msg=name)
        compared += 1
    assert compared >= 10
    if model_type == "granitemoeshared":
        fused = state["model.layers.1.shared_mlp.input_linear.weight"].numpy()
        for name, rows in (("gate", fused[:96]), ("up", fused[96:])):
            got = dequantize(tensors[f"model.layers.1.mlp.shared_expert.{name}_proj.weight"])
            np.testing.assert_array_equal(got, rows)
    assert imported.config.parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_the_trained_model_is_imported(real_model: Callable[[str], Path], bring: Bring) -> None:
    folder = real_model("tiny-moe")
    imported, tensors, banks = bring({path.name: path for path in folder.iterdir()})
    assert imported.config.architecture == "qwen3_moe"
    assert imported.config.tokens.eos_ids == [2, 0]
    assert imported.chat_template is not None and "<|im_start|>" in imported.chat_template
    with safe_open(folder / "model.safetensors", "pt") as source:
        for layer, expert in ((0, 0), (3, 17), (7, 31)):
            for role in ("gate", "up", "down"):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
                wanted = source.get_tensor(name).float().numpy()
                np.testing.assert_array_equal(dequantize(banks[layer].matrix(role, expert)), wanted)
        wanted = source.get_tensor("model.layers.5.mlp.gate.weight").float().numpy()
    np.testing.assert_array_equal(dequantize(tensors["model.layers.5.mlp.gate.weight"]), wanted)
