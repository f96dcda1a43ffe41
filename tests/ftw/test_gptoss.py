"""gpt-oss as Ollama's converters write it, old and new, against transformers and the same safetensors.

The files are written here after the description of those converters: an MXFP4 block is a scale and 16 bytes,
in Hugging Face's order of values (type 4) or ggml's (type 39).
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import gguf_bytes
import numpy as np
import pytest
from checkpoint_bytes import C, D, E, F, G, H
from numpy.typing import NDArray

from ftd.errors import FtdError
from ftd.ftw import reader
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.imported import ImportedModel
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize

Tensors = dict[str, NDArray[Any]]
Save = Callable[[str, bytes], Path]
PAIRS, GGML = 4, 39
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.router": "ffn_gate_inp",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def stored(values: NDArray[Any]) -> tuple[int, bytes]:
    """Return the type and bytes of floats: vectors are F32; uint16 stands for bf16."""
    if values.ndim == 1 and values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return (30 if values.dtype == np.uint16 else 0), np.ascontiguousarray(values).tobytes()


def tensor(name: str, values: NDArray[Any]) -> gguf_bytes.Tensor:
    """Return a tensor of floats."""
    kind, data = stored(values)
    return gguf_bytes.Tensor(name, tuple(reversed(values.shape)), kind, data)


def mxfp4(name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8], kind: int) -> gguf_bytes.Tensor:
    """Return a tensor of MXFP4 from Hugging Face's blocks [E, N, K/32, 16] and scales [E, N, K/32]."""
    if kind == GGML:
        values = np.stack((blocks & 0x0F, blocks >> 4), axis=-1).reshape(*blocks.shape[:3], 32)
        blocks = values[..., :16] | values[..., 16:] << 4
    data = np.concatenate([scales[..., None], blocks], axis=3)
    experts, rows, count, _ = blocks.shape
    return gguf_bytes.Tensor(name, (count * 32, rows, experts), kind, data.tobytes())


def converted(state: Tensors, kind: int, fused: bool) -> list[gguf_bytes.Tensor]:
    """Return the tensors of a file of Ollama's; ``fused``: q, k and v in one, and gate and up."""
    found = []
    for name, values in state.items():
        stem, _, ending = name.rpartition(".")
        if stem in OUTER:
            found.append(tensor(f"{OUTER[stem]}.{ending}", values))
            continue
        layer, _, inner = stem.removeprefix("model.layers.").partition(".")
        block = f"blk.{layer}."
        if inner in LAYER and not (fused and inner[-6:] in ("q_proj", "k_proj", "v_proj")):
            floats = as_f32(values) if inner == "mlp.router" else values
            found.append(tensor(f"{block}{LAYER[inner]}.{ending}", floats))
        elif inner in LAYER and inner.endswith("q_proj"):
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found.append(tensor(f"{block}attn_qkv.{ending}", np.concatenate(parts)))
        elif ending == "sinks":
            found.append(tensor(f"{block}attn_sinks", values))
        elif inner == "mlp.experts":
            found += experts(block, ending, state, name, kind, fused)
    return found


def experts(
    block: str, ending: str, state: Tensors, name: str, kind: int, fused: bool
) -> list[gguf_bytes.Tensor]:
    """Return what becomes of one tensor of the experts."""
    role = "down" if ending.startswith("down") else "gate_up"
    parts = {"down": slice(None)} if role == "down" else {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
    if fused:
        parts = {role: slice(None)}
    if ending.endswith("_bias"):
        bias = as_f32(state[name])
        return [tensor(f"{block}ffn_{part}_exps.bias", bias[:, rows]) for part, rows in parts.items()]
    if not ending.endswith("_blocks"):
        return []
    blocks, scales = state[name], state[name.replace("_blocks", "_scales")]
    return [
        mxfp4(f"{block}ffn_{part}_exps.weight", blocks[:, rows], scales[:, rows], kind)
        for part, rows in parts.items()
    ]


def as_f32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return floats as f32; uint16 stands for bf16."""
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values


def metadata(**more: Any) -> dict[str, Any]:
    """Return the metadata of a model like ``checkpoint_bytes.gpt_oss``; None leaves a key out."""
    settings = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": D,
        "feed_forward_length": F,
        "expert_count": E,
        "expert_used_count": 2,
        "attention.head_count": H,
        "attention.head_count_kv": G,
        "attention.key_length": C,
        "attention.value_length": C,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 8,
        "rope.freq_base": 10000.0,
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 16,
        **more,
    }
    found: dict[str, Any] = {"general.architecture": "gptoss", "general.file_type": 4}
    found |= {f"gptoss.{key}": value for key, value in settings.items() if value is not None}
    return found | gguf_bytes.tokenizer(**{"tokenizer.ggml.pre": "default"})


def load(sink: DirectorySink, imported: ImportedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of all tensors, and the planes of all experts' matrices."""
    config = reader.read_config(sink.path(imported.config_digest))
    paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
    blobs = reader.load_blobs(config, paths, verify=True)
    planes = {
        f"{layer}.{expert}.{role}": [plane.tobytes() for plane in bank.matrix(role, expert).planes]
        for layer, bank in reader.expert_banks(config, blobs).items()
        for expert in range(bank.num_experts)
        for role in bank.layout
    }
    return {name: dequantize(matrix) for name, matrix in reader.tensors(config, blobs).items()}, planes


def scaled(state: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the positions of ``metadata``."""
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16, "truncate": False}
    return state | {"rope_scaling": scaling}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [PAIRS, GGML])
def test_ollamas_files_hold_what_the_checkpoint_holds(
    kind: int, fused: bool, save: Save, tmp_path: Path, sink: DirectorySink
) -> None:
    config, state = checkpoint_bytes.gpt_oss()
    wanted = import_safetensors(checkpoint_bytes.save(tmp_path / "hf", scaled(config), state), sink)
    file = gguf_bytes.gguf(metadata(), converted(state, kind, fused))
    got = import_gguf([save("m.gguf", file)], sink)
    values, planes = load(sink, got)
    wanted_values, wanted_planes = load(sink, wanted)
    assert planes == wanted_planes and len(planes) == E * 6
    assert values.keys() == wanted_values.keys()
    for name, matrix in wanted_values.items():
        np.testing.assert_array_equal(values[name], matrix, err_msg=name)
    theirs = wanted.config.hyperparameters
    assert {key: got.config.hyperparameters.get(key) for key in theirs} == theirs
    assert (got.config.architecture, got.config.quantization) == ("gpt_oss", "MXFP4")
    assert got.config.parameter_count == wanted.config.parameter_count


@pytest.mark.parametrize("fused", [False, True])
def test_an_imported_file_computes_what_transformers_does(
    fused: bool, save: Save, sink: DirectorySink
) -> None:
    from tests.engine import moe, tiny
    from tests.engine.test_hybrid_checkpoints import read
    from tests.engine.test_model import PROMPT, assert_close, build, graph_class, run

    model = tiny.make("gpt_oss", swiglu_limit=7.0)
    banks = moe.requantized("gpt_oss", model.oracle, model.banks, moe.mxfp4)
    state: Tensors = {name: values.numpy() for name, values in model.oracle.state_dict().items()}
    for bank in banks:
        stem = f"model.layers.{bank.layer}.mlp.experts."
        for role in ("gate_up", "down"):
            del state[f"{stem}{role}_proj"]
            parts = [
                blocks_of(bank.matrices[role].expert(expert), role) for expert in range(bank.num_experts)
            ]
            state[f"{stem}{role}_proj_blocks"] = np.stack([codes for codes, _ in parts])
            state[f"{stem}{role}_proj_scales"] = np.stack([scales for _, scales in parts])
    hyper = model.hyperparameters
    more = {
        "block_count": hyper["num_hidden_layers"],
        "context_length": hyper["max_position_embeddings"],
        "embedding_length": hyper["hidden_size"],
        "feed_forward_length": hyper["intermediate_size"],
        "expert_count": hyper["num_local_experts"],
        "attention.head_count": hyper["num_attention_heads"],
        "attention.head_count_kv": hyper["num_key_value_heads"],
        "attention.key_length": hyper["head_dim"],
        "attention.value_length": hyper["head_dim"],
        "attention.layer_norm_rms_epsilon": hyper["rms_norm_eps"],
        "attention.sliding_window": hyper["sliding_window"],
        "rope.freq_base": hyper["rope_theta"],
        "rope.scaling.factor": hyper["rope_scaling"]["factor"],
        "rope.scaling.original_context_length": hyper["rope_scaling"]["original_max_position_embeddings"],
    }
    file = gguf_bytes.gguf(metadata(**more), converted(state, PAIRS if fused else GGML, fused))
    imported = read(sink, import_gguf([save("m.gguf", file)], sink))
    assert_close(run(build(imported, graph_class("cython")), [(0, PROMPT, 0)]), model.logits(PROMPT))


def blocks_of(matrix: Any, role: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return Hugging Face's blocks and scales of an expert's mxfp4 matrix; rows of gate and up alternate."""
    codes, scales = (plane.reshape(matrix.shape[0], -1) for plane in matrix.planes)
    if role == "gate_up":
        codes, scales = (
            np.stack(np.split(plane, 2), axis=1).reshape(plane.shape) for plane in (codes, scales)
        )
    halves = codes.reshape(len(codes), -1, 16)
    values = np.concatenate([halves & 0x0F, halves >> 4], axis=2)
    return values[..., ::2] | values[..., 1::2] << 4, scales


def test_text_is_cut_as_by_gpt_4o_and_all_listed_tokens_end_it(save: Save, sink: DirectorySink) -> None:
    _, state = checkpoint_bytes.gpt_oss()
    ends = gguf_bytes.Raw(struct.pack("<IIQ3i", 9, 5, 3, 2, 4, 77))
    imported = {}
    for pre in ("default", "gpt-4o", None):
        told = metadata() | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.eos_token_ids": ends}
        told = {key: value for key, value in told.items() if value is not None}
        got = import_gguf([save("m.gguf", gguf_bytes.gguf(told, converted(state, GGML, False)))], sink)
        assert got.config.tokens.eos_ids == [2, 4, 9] and not got.config.tokens.add_bos
        imported[pre] = got.blobs[-1].digest
    assert len(set(imported.values())) == 1
    assert b"{1,3}" in sink.path(imported["default"]).read_bytes()


def test_without_a_factor_positions_are_not_scaled(save: Save, sink: DirectorySink) -> None:
    _, state = checkpoint_bytes.gpt_oss()
    file = gguf_bytes.gguf(metadata(**{"rope.scaling.factor": None}), converted(state, GGML, False))
    assert import_gguf([save("m.gguf", file)], sink).config.hyperparameters["rope_scaling"] is None


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        ({"rope.scaling.original_context_length": None}, {}, r"original_context_length .* None"),
        ({}, {"blk.0.attn_q.weight": "blk.0.attn_qkv.weight"}, r"attn_qkv.weight has dims .* instead of"),
        (
            {"rope.scaling.factor": gguf_bytes.Raw(struct.pack("<IIQff", 9, 6, 2, 1, 2))},
            {},
            "factor is not a",
        ),
        ({"block_count": 4097}, {}, "gptoss.block_count"),
        ({}, {"blk.0.attn_sinks": "blk.0.sinks"}, "attn_sinks.weight is missing"),
        (
            {},
            {"blk.0.ffn_gate_exps.weight": "blk.0.ffn_gate_up_exps.weight"},
            "ffn_gate_up_exps.weight has dims",
        ),
        ({}, {"blk.0.ffn_gate_exps.bias": "blk.0.ffn_gate_up_exps.bias"}, "ffn_gate_up_exps.bias has dims"),
    ],
)
def test_files_that_cannot_be_are_refused(
    settings: dict[str, Any], tensors: dict[str, str], message: str, save: Save, sink: DirectorySink
) -> None:
    _, state = checkpoint_bytes.gpt_oss()
    found = [
        gguf_bytes.Tensor(tensors.get(t.name, t.name), t.dims, t.type, t.data)
        for t in converted(state, GGML, False)
    ]
    with pytest.raises(FtdError, match=message):
        import_gguf([save("m.gguf", gguf_bytes.gguf(metadata(**settings), found))], sink)


@pytest.mark.parametrize("fused", [False, True])
def test_either_architecture_takes_the_names_of_both(fused: bool, save: Save, sink: DirectorySink) -> None:
    _, state = checkpoint_bytes.gpt_oss()
    llama_cpps = {
        "attn_out": "attn_output",
        "attn_sinks": "attn_sinks.weight",
        "ffn_norm": "post_attention_norm",
    }
    loaded = []
    for architecture in ("gptoss", "gpt-oss"):
        told = {key.replace("gptoss.", f"{architecture}."): value for key, value in metadata().items()}
        told |= {"general.architecture": architecture, f"{architecture}.rope.scaling.type": "yarn"}
        for names in ({}, llama_cpps):
            tensors = []
            for tensor in converted(state, GGML, fused):
                first, layer, *rest = tensor.name.split(".")
                if first == "blk":
                    rest[0] = names.get(rest[0], rest[0])
                name = ".".join((first, layer, *rest))
                tensors.append(gguf_bytes.Tensor(name, tensor.dims, tensor.type, tensor.data))
            loaded.append(load(sink, import_gguf([save("m.gguf", gguf_bytes.gguf(told, tensors))], sink)))
    for values, planes in loaded[1:]:
        assert planes == loaded[0][1] and values.keys() == loaded[0][0].keys()
        assert all(np.array_equal(values[name], matrix) for name, matrix in loaded[0][0].items())
