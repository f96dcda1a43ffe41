"""ftd.ftw.import_gguf: imported models hold the values that the ``gguf`` package reads from the same file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes
import numpy as np
import pytest
from tokenizers import Tokenizer

from ftd.errors import FtdError, InvalidGguf, Unsupported
from ftd.ftw import import_gguf as module
from ftd.ftw import reader
from ftd.ftw.format import DENSE_MEDIA_TYPE, TOKENIZER_MEDIA_TYPE
from ftd.ftw.gguf import GgufFile
from ftd.ftw.gguf_blocks import FORMAT_BY_TYPE
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.imported import ImportedModel
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix

LONG_ROWS = 8192  # of an embedding the first rows are compared: the whole would take gigabytes as f32
Save = Callable[[str, bytes], Path]
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hugging_face_name(name: str, architecture: str) -> str:
    names = GEMMA_NAMES if architecture == "gemma3" else NAMES
    *prefix, stem, kind = name.split(".")
    layer = f"model.layers.{prefix[1]}." if prefix else ""
    return f"{layer}{names[stem]}.{kind}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as the conversion scripts of llama.cpp do for the llama architecture."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def first_rows(matrix: QuantMatrix) -> QuantMatrix:
    return QuantMatrix(
        matrix.format, (LONG_ROWS, matrix.shape[1]), tuple(plane[:LONG_ROWS] for plane in matrix.planes)
    )


def load(sink: DirectorySink, imported: ImportedModel) -> dict[str, QuantMatrix]:
    config = reader.read_config(sink.path(imported.config_digest))
    assert config == imported.config
    return reader.tensors(
        config,
        reader.load_blobs(
            config, {blob.digest: sink.path(blob.digest) for blob in config.blobs}, verify=True
        ),
    )


def assert_same_values(path: Path, imported: ImportedModel, tensors: dict[str, QuantMatrix]) -> None:
    """Compare every tensor, bit for bit, with the dequantisation of the ``gguf`` package."""
    hyper: dict[str, Any] = dict(imported.config.hyperparameters)
    with GgufFile.open(path) as file:
        assert len(file.tensors) == len(tensors)
        for info in file.tensors:
            ours = tensors[hugging_face_name(info.name, str(file.metadata["general.architecture"]))]
            assert ours.format == ("f32" if len(info.dims) == 1 else FORMAT_BY_TYPE[info.type])
            raw = file.read(info).reshape(ours.shape[0], -1)[:LONG_ROWS]
            wanted = gguf_bytes.values(info.type, raw)
            values = dequantize(first_rows(ours) if ours.shape[0] > LONG_ROWS else ours)
            if imported.config.architecture == "llama" and info.name.split(".")[-2] in ("attn_q", "attn_k"):
                heads = hyper["num_attention_heads" if "attn_q" in info.name else "num_key_value_heads"]
                values = interleaved(values, heads)
            assert np.array_equal(values.view(np.uint32), wanted.reshape(values.shape).view(np.uint32)), (
                info.name
            )


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_family_keeps_its_values(architecture: str, sink: DirectorySink, save: Save) -> None:
    kinds = {
        "attn_q.weight": "Q4_K",
        "attn_k.weight": "Q5_0",
        "ffn_down.weight": "Q6_K",
        "token_embd.weight": "Q8_0",
    }
    path = save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model(architecture, kinds)))
    imported = import_gguf([path], sink)
    tensors = load(sink, imported)
    assert (imported.config.hyperparameters["attention_bias"] is True) == (architecture == "qwen2")
    assert imported.config.architecture == {"gemma3": "gemma3_text"}.get(architecture, architecture)
    assert_same_values(path, imported, tensors)


@pytest.mark.parametrize("kind", FORMAT_BY_TYPE)
def test_every_block_type_survives_the_sorting_of_rows(kind: str, sink: DirectorySink, save: Save) -> None:
    path = save(
        "m.gguf", gguf_bytes.gguf(*gguf_bytes.model("llama", {"attn_q.weight": kind, "attn_k.weight": kind}))
    )
    imported = import_gguf([path], sink)
    assert_same_values(path, imported, load(sink, imported))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_floats_are_quantised_as_the_gguf_package_does(
    kind: str, format: str, sink: DirectorySink, save: Save
) -> None:
    path = save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model("llama", {"": kind})))
    imported = import_gguf([path], sink, quantization=format)
    tensors = load(sink, imported)
    assert tensors["model.embed_tokens.weight"].format == "q8_0"
    assert imported.config.quantization == format.upper()
    kind_of = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}[format]
    with GgufFile.open(path) as file:
        for info in file.tensors:
            ours = tensors[hugging_face_name(info.name, "llama")]
            if len(info.dims) == 1 or info.name == "token_embd.weight":
                continue
            raw = file.read(info).reshape(ours.shape[0], -1)
            floats = gguf.dequantize(raw, gguf.GGMLQuantizationType[info.type]).astype(np.float32)
            wanted = gguf.dequantize(gguf.quantize(floats, kind_of), kind_of)
            values = dequantize(ours)
            if info.name.split(".")[-2] in ("attn_q", "attn_k"):
                values = interleaved(values, 4 if "attn_q" in info.name else 2)
            assert ours.format == format
            np.testing.assert_array_equal(values, wanted)


def test_biases_of_q_and_k_are_sorted_like_their_rows(sink: DirectorySink, save: Save) -> None:
    metadata, tensors = gguf_bytes.model("llama")
    half_split = np.arange(256, dtype=np.float32).reshape(256, 1)
    data = interleaved(half_split, 4).tobytes()
    tensors.append(gguf_bytes.Tensor("blk.0.attn_q.bias", (256,), 0, data))
    imported = import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, tensors))], sink)
    bias = load(sink, imported)["model.layers.0.self_attn.q_proj.bias"].planes[0]
    assert bias.tolist() == [list(range(256))]


def test_hyperparameters_and_special_ids(sink: DirectorySink, save: Save) -> None:
    more = {
        "tokenizer.chat_template": "{{ messages }}",
        "general.file_type": 2,
        "llama.rope.freq_base": 500000.0,
        "long": [1, 2, 3, 4, 5, 6],
        "short": ["a"],
    }
    imported = import_gguf([save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model(**more)))], sink)
    assert imported.config.hyperparameters == {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 32,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
    }
    assert imported.config.tokens.eos_ids == [2, 9]
    assert imported.config.quantization == "Q4_0"
    assert imported.chat_template == "{{ messages }}"
    shown = imported.config.metadata
    assert (shown["long"], shown["short"], shown["tokenizer.ggml.tokens"]) == ([], ["a"], [])
    assert shown["general.parameter_count"] == imported.config.parameter_count > 0
    assert "tokenizer.chat_template" not in shown
    assert [blob.media_type for blob in imported.blobs] == [DENSE_MEDIA_TYPE, TOKENIZER_MEDIA_TYPE]
    tokenizer = Tokenizer.from_file(str(sink.path(imported.blobs[1].digest)))
    assert tokenizer.encode("ab c<|im_end|>").ids == [5, 7, 6, 9]


def test_rope_factors_become_rope_scaling(sink: DirectorySink, save: Save) -> None:
    metadata, tensors = gguf_bytes.model("llama")
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    tensors.append(gguf_bytes.Tensor("rope_freqs.weight", (32,), 0, factors.tobytes()))
    imported = import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, tensors))], sink)
    scaling: Any = imported.config.hyperparameters["rope_scaling"]
    assert scaling["rope_type"] == "factors"
    assert np.array_equal(np.array(scaling["factors"], np.float32), factors)


def test_shards_make_the_same_weights_as_one_file(sink: DirectorySink, save: Save) -> None:
    metadata, tensors = gguf_bytes.model("llama")
    whole = import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, tensors))], sink)
    for number, part in enumerate((tensors[:7], tensors[7:])):
        split = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        data = gguf_bytes.gguf((metadata if number == 0 else {}) | split, part)
        save(f"s-0000{number + 1}-of-00002.gguf", data)
    sharded = import_gguf([save("x", b"").with_name("s-00002-of-00002.gguf")], sink)
    assert sharded.blobs == whole.blobs


@pytest.mark.parametrize("slab_bytes", [1, 5000, 70_000])
def test_slabs_of_any_size_make_the_same_blob(
    sink: DirectorySink, save: Save, slab_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model("llama", {"attn_q.weight": "Q6_K"})))
    whole = import_gguf([path], sink)
    monkeypatch.setattr(module, "SLAB_BYTES", slab_bytes)
    assert import_gguf([path], sink).blobs == whole.blobs


def test_progress_ends_at_the_bytes_of_all_tensors(sink: DirectorySink, save: Save) -> None:
    seen: list[tuple[int, int]] = []
    metadata, tensors = gguf_bytes.model("llama")
    import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, tensors))], sink, lambda *pair: seen.append(pair))
    total = sum(len(tensor.data) for tensor in tensors)
    assert seen == sorted(seen) and seen[-1] == (total, total)


def test_an_unknown_architecture_is_refused_with_the_list(sink: DirectorySink, save: Save) -> None:
    with pytest.raises(Unsupported, match="'rwkv'") as caught:
        import_gguf(
            [save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model("llama", **{"general.architecture": "rwkv"})))],
            sink,
        )
    assert "qwen3" in str(caught.value.hint)


def drop(name: str) -> Callable[[list[gguf_bytes.Tensor]], None]:
    return lambda tensors: tensors.remove(next(tensor for tensor in tensors if tensor.name == name))


def add(name: str, kind: str, shape: tuple[int, ...]) -> Callable[[list[gguf_bytes.Tensor]], None]:
    return lambda tensors: tensors.append(gguf_bytes.tensor(name, kind, shape, np.random.default_rng(0)))


def swap(name: str, kind: str, shape: tuple[int, ...]) -> Callable[[list[gguf_bytes.Tensor]], None]:
    def change(tensors: list[gguf_bytes.Tensor]) -> None:
        drop(name)(tensors)
        add(name, kind, shape)(tensors)

    return change


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (drop("blk.1.ffn_up.weight"), {}, "blk.1.ffn_up.weight is missing"),
        (drop("token_embd.weight"), {}, "token_embd.weight is missing"),
        (add("blk.2.attn_q.weight", "Q4_0", (256, 256)), {}, "do not belong to a llama model: blk.2"),
        (add("mystery", "F32", (4,)), {}, "do not belong to a llama model: mystery"),
        (swap("blk.0.attn_k.weight", "Q4_0", (256, 256)), {}, r"dims \[256, 256\] instead of \[256, 128\]"),
        (swap("output_norm.weight", "Q8_0", (256,)), {}, "must not be quantised"),
        (swap("blk.0.ffn_up.weight", "F32", (2, 256, 256)), {}, "dims"),
        (add("rope_freqs.weight", "F32", (31,)), {}, "rope_freqs.weight"),
        (None, {"llama.block_count": 0}, "block_count is not between"),
        (None, {"llama.block_count": 1 << 30}, "block_count is not between"),
        (None, {"llama.block_count": 3}, "blk.2.attn_norm.weight is missing"),
        (None, {"llama.attention.head_count": 0}, "head_count is not between"),
        (None, {"llama.attention.head_count": 1 << 24}, r"instead of \[256, 1073741824\]"),
        (None, {"llama.attention.key_length": 0}, "key_length is not between"),
        (None, {"llama.attention.value_length": 32}, "different head sizes"),
        (None, {"llama.attention.head_count_kv": 3}, "do not share"),
        (None, {"llama.embedding_length": -1}, "embedding_length is not between"),
        (None, {"llama.embedding_length": "256"}, "embedding_length is not between"),
        (None, {"llama.context_length": 0}, "context_length is not between"),
        (None, {"llama.attention.layer_norm_rms_epsilon": 0.0}, "not a positive number"),
        (None, {"llama.attention.layer_norm_rms_epsilon": float("nan")}, "not a positive number"),
        (None, {"llama.rope.freq_base": float("inf")}, "not a positive number"),
        (None, {"llama.attention.head_count_kv": [2, 1]}, "differs between layers"),
        (None, {"llama.rope.dimension_count": 512}, "rope.dimension_count is not between 1 and"),
        (None, {"llama.rope.scaling.type": "magic"}, "rope scaling is not supported"),
        (None, {"llama.expert_count": 8}, "expert_used_count is not between"),
        (None, {"llama.expert_count": 8, "llama.expert_used_count": 9}, "uses 9 of 8 experts"),
        (None, {"llama.expert_count": 8, "llama.expert_used_count": 2}, "ffn_gate_inp.weight is missing"),
        (None, {"llama.expert_count": "8"}, "expert_count is not an integer"),
        (None, {"general.architecture": 7}, "general.architecture is not a string"),
        (None, {"tokenizer.ggml.model": "rwkv"}, "tokenizer is not supported"),
        (None, {"tokenizer.ggml.eos_token_id": 10}, "not between 0 and 9"),
    ],
)
def test_a_model_with_one_fault_is_refused_and_leaves_nothing(
    change: Callable[[list[gguf_bytes.Tensor]], None] | None,
    more: dict[str, Any],
    message: str,
    sink: DirectorySink,
    save: Save,
) -> None:
    metadata, tensors = gguf_bytes.model("llama", **more)
    if change:
        change(tensors)
    with pytest.raises(FtdError, match=message):
        import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, tensors))], sink)
    assert list(sink.directory.iterdir()) == []


def test_a_file_that_shrinks_while_it_is_imported_leaves_nothing(sink: DirectorySink, save: Save) -> None:
    path = save("m.gguf", gguf_bytes.gguf(*gguf_bytes.model("llama")))

    def truncate(done: int, total: int) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    with pytest.raises(InvalidGguf, match="became shorter"):
        import_gguf([path], sink, truncate)
    assert list(sink.directory.iterdir()) == []


@pytest.mark.slow
def test_smollm2_keeps_every_value(smollm2_gguf: Path, sink: DirectorySink) -> None:
    imported = import_gguf([smollm2_gguf], sink)
    assert (imported.config.quantization, imported.config.parameter_count) == ("Q4_1", 134515008)
    assert imported.config.tokens.eos_ids == [2, 0]
    assert_same_values(smollm2_gguf, imported, load(sink, imported))


@pytest.mark.slow
def test_gemma3_keeps_every_value(gemma3_gguf: Path, sink: DirectorySink) -> None:
    imported = import_gguf([gemma3_gguf], sink)
    assert imported.config.quantization == "Q4_K_M"
    assert imported.config.tokens.eos_ids == [1, 106]
    assert imported.config.tokens.add_bos is True
    assert_same_values(gemma3_gguf, imported, load(sink, imported))
