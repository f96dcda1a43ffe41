"""Tiny models as GGUF files that llama.cpp computes, and what it computed.

Tensors go by the names of ftd's own families: a wrong name or order of rows would show in the numbers.
"""

import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ftd.ftw.gguf_families import FAMILIES
from ftd.ftw.gguf_moe import MOE_FAMILIES
from ftd.kernels.quant import ExpertBank, QuantMatrix
from tests.engine import tiny

CONTEXT = 128
LETTERS = [chr(code) for code in range(33, 127)] + ["\u0120", "\u010a"]


def text(length: int = 3 * CONTEXT) -> str:
    """Return letters, a token each."""
    rng = np.random.default_rng(11)
    return "".join(chr(code) for code in rng.integers(97, 123, length))


def rows_of(matrix: QuantMatrix) -> NDArray[np.float32]:
    """Return an f32 matrix's values."""
    assert matrix.format == "f32"
    values: NDArray[np.float32] = matrix.planes[0]
    return values


def neighbours(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Sort the halves of each head's rows into pairs, as llama.cpp rotates in some architectures."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def role_of(bank: ExpertBank, role: str) -> NDArray[np.float32]:
    """Return one role of all experts [E, N, K]; gate and up may lie in one."""
    found = []
    for expert in range(bank.num_experts):
        matrices = {name: rows_of(part.expert(expert)) for name, part in bank.matrices.items()}
        for both in ("gate_up", "gate_up_bias"):
            if both in matrices:
                tail = both.removeprefix("gate_up")
                axis = 1 if tail else 0
                gate, up = np.split(matrices[both], 2, axis=axis)
                matrices |= {f"gate{tail}": gate, f"up{tail}": up}
        found.append(matrices[role])
    return np.stack(found)


def tensors_of(model: tiny.Tiny, architecture: str) -> dict[str, NDArray[np.float32]]:
    """Return the model's tensors under the names of GGUF's ``architecture``."""
    family = (MOE_FAMILIES if model.banks else FAMILIES)[architecture]
    hyper = {"num_experts": 0, **model.hyperparameters}
    head_dim = hyper.get("head_dim", hyper["hidden_size"] // hyper["num_attention_heads"])
    found: dict[str, NDArray[np.float32]] = {}
    for layer, part in family.wanted(hyper):
        name = part.name if layer is None else f"model.layers.{layer}.{part.name}"
        if name not in model.tensors:
            assert not part.required, name
            continue
        values = rows_of(model.tensors[name])
        if part.interleaved:
            values = neighbours(values.reshape(-1, 1) if len(values) == 1 else values, head_dim)
        values = values.reshape(-1) if len(part.shape) == 1 else values
        found[part.gguf if layer is None else f"blk.{layer}.{part.gguf}"] = np.ascontiguousarray(values)
    for bank in model.banks:
        for expert_part in family.experts:
            values = role_of(bank, expert_part.role)
            values = values[:, 0] if len(expert_part.shape) == 1 else values
            found[f"blk.{bank.layer}.{expert_part.gguf}"] = np.ascontiguousarray(values)
    return found


def write_gguf(
    model: tiny.Tiny, architecture: str, path: Path, settings: dict[str, Any], tensors: dict[str, Any]
) -> None:
    """Write ``tensors`` with the sizes of ``model`` and more ``settings``: numbers, bools, strings, lists.

    tensors: name -> floats, or blocks [… bytes of a row] and their type.
    """
    hyper, writer = model.hyperparameters, gguf.GGUFWriter(path, architecture)
    head_dim = hyper.get("head_dim", hyper["hidden_size"] // hyper["num_attention_heads"])
    metadata = {
        "context_length": 4 * CONTEXT,
        "embedding_length": hyper["hidden_size"],
        "block_count": hyper["num_hidden_layers"],
        "feed_forward_length": hyper["intermediate_size"],
        "attention.head_count": hyper["num_attention_heads"],
        "attention.head_count_kv": hyper["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(hyper["rms_norm_eps"]),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(hyper["rope_theta"]),
        **settings,
    }
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        add[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*LETTERS, *(f"<{index}>" for index in range(len(LETTERS), hyper["vocab_size"]))])
    writer.add_token_types([1] * hyper["vocab_size"])
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, values in tensors.items():
        blocks, kind = values if isinstance(values, tuple) else (values, None)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logprobs(program: Path, model: Path, folder: Path) -> list[tuple[list[int], NDArray[np.float64]]]:
    """Return for each window its ids, and llama.cpp's log-probabilities [n, V] after its second half.

    They are kept as 16-bit steps between the largest logit and the smallest, or 16 below the largest.
    """
    (folder / "text.txt").write_text(text())
    output = folder / "logits.bin"
    command = [program, "-m", model, "-f", folder / "text.txt", "-c", str(CONTEXT), "-b", str(CONTEXT)]
    command += ["--kl-divergence-base", output, "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and output.exists(), done.stderr[-2000:]
    data = output.read_bytes()
    assert data[:8] == b"_logits_"
    window, vocabulary, count = (int(value) for value in np.frombuffer(data, "<i4", 3, 8))
    ids = np.frombuffer(data, "<i4", window * count, 20).reshape(count, window)
    width = 2 * ((vocabulary + 1) // 2) + 4
    kept = window - 1 - window // 2
    rows = np.frombuffer(data, "<u2", count * kept * width, 20 + ids.nbytes).reshape(count, kept, width)
    scales = np.ascontiguousarray(rows[:, :, :4]).view("<f4").astype(np.float64)
    values = rows[:, :, 4 : 4 + vocabulary] * scales[:, :, :1] + scales[:, :, 1:]
    return [(row.tolist(), one) for row, one in zip(ids, values, strict=True)]
