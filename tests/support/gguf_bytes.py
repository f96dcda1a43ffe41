"""GGUF files put together byte by byte, after the format's own description and not with ftd's code."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gguf as package
import numpy as np
from numpy.typing import NDArray

# name -> (ggml type, values in a block, bytes of a block, byte offsets of the f16 fields of a block)
BLOCKS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, (0,)),
    "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
    "MXFP4": (39, 32, 17, ()),
    "MXFP4_PAIRS": (4, 32, 17, ()),
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file to be: dims with the row length first, ggml type, bytes."""

    name: str
    dims: tuple[int, ...]
    type: int
    data: bytes


def string(text: str | bytes) -> bytes:
    """Length and bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Type and value: bool, int (u32, or i64 if it does not fit), float (f32), str, or a list of these."""
    if isinstance(item, Raw):
        return item.encode("latin-1")
    if isinstance(item, list):
        parts = [value(part) for part in item]
        kind = parts[0][:4] if parts else struct.pack("<I", 8)
        return (
            struct.pack("<I", 9) + kind + struct.pack("<Q", len(item)) + b"".join(part[4:] for part in parts)
        )
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item) if 0 <= item < 1 << 32 else struct.pack("<Iq", 11, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    return struct.pack("<I", 8) + string(item)


def gguf(metadata: dict[str, Any], tensors: Sequence[Tensor] = (), alignment: int = 32) -> bytes:
    """Return a whole file of version 3."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, item in metadata.items():
        out += string(key) + value(item)
    data = bytearray()
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        out += string(tensor.name) + struct.pack("<I", len(tensor.dims))
        out += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims) + struct.pack("<IQ", tensor.type, len(data))
        data += tensor.data
    if tensors:
        out += bytes(-len(out) % alignment)
    return bytes(out + data)


def blocks(kind: str, rows: int, columns: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return [rows, row bytes] of random blocks of one type; float fields are finite."""
    _, values, size, halves = BLOCKS[kind]
    raw = random.integers(0, 256, (rows * columns // values, size), np.uint8)
    if kind in ("F32", "BF16"):
        floats = random.normal(size=len(raw)).astype(np.float32)
        raw[:] = floats.view(np.uint8).reshape(-1, 4)[:, 4 - size :]
    if kind in ("MXFP4", "MXFP4_PAIRS"):
        raw[:, 0] = random.integers(100, 140, len(raw))
        raw[:, 1:][raw[:, 1:] & 0x0F == 8] &= 0xF0  # the gguf package reads the code of -0 as +0
        raw[:, 1:][raw[:, 1:] >> 4 == 8] &= 0x0F
    for offset in halves:
        raw[:, offset : offset + 2] = (
            random.normal(0, 0.1, len(raw)).astype(np.float16).view(np.uint8).reshape(-1, 2)
        )
    return raw.reshape(rows, -1)


def values(kind: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[rows, row bytes] -> [rows, columns] as the ``gguf`` package reads them."""
    if kind == "MXFP4_PAIRS":  # unknown to the package: MXFP4 with values 2j and 2j + 1 in byte j
        blocks = raw.reshape(-1, 17).copy()
        codes = np.stack((blocks[:, 1:] & 0x0F, blocks[:, 1:] >> 4), axis=2).reshape(-1, 32)
        blocks[:, 1:] = codes[:, :16] | codes[:, 16:] << 4
        kind, raw = "MXFP4", blocks.reshape(raw.shape)
    return package.dequantize(raw, package.GGMLQuantizationType[kind]).astype(np.float32)


def tensor(name: str, kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Tensor:
    """Return a random tensor of Hugging Face's ``shape`` (rows first)."""
    columns = shape[-1]
    raw = blocks(kind, int(np.prod(shape)) // columns, columns, random)
    return Tensor(name, tuple(reversed(shape)), BLOCKS[kind][0], raw.tobytes())


VOCABULARY = ["<unk>", "<s>", "</s>", "a", "b", "ab", "c", "Ġ", "Ċ", "<|im_end|>"]
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": VOCABULARY,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def tokenizer(**more: Any) -> dict[str, Any]:
    """Return the metadata of a ten-token byte-level vocabulary; <|im_end|> is a control token."""
    types = struct.pack("<IIQ10i", 9, 5, 10, 2, 3, 3, 1, 1, 1, 1, 1, 1, 3)
    return {**TOKENIZER, "tokenizer.ggml.token_type": Raw(types), **more}


class Raw(str):
    """A value that is already encoded."""

    def __new__(cls, data: bytes) -> "Raw":
        return super().__new__(cls, data.decode("latin-1"))


def model(
    architecture: str = "llama", kinds: dict[str, str] | None = None, unit: int = 64, **more: Any
) -> tuple[dict[str, Any], list[Tensor]]:
    """Return metadata and random tensors of a model: 2 layers, 4 query and 2 key heads of ``unit`` channels.

    kinds: ending of a GGUF tensor name -> block type, for matrices (Q4_0 where not named).
    """
    kinds = kinds or {}
    random = np.random.default_rng(0)
    sizes = {"D": 4 * unit, "F": 8 * unit, "V": 32, "Q": 4 * unit, "W": 2 * unit, "C": unit}
    layer = {
        **{
            "attn_norm": "D",
            "attn_q": "QD",
            "attn_k": "WD",
            "attn_v": "WD",
            "attn_output": "DQ",
            "ffn_norm": "D",
        },
        **{"ffn_gate": "FD", "ffn_up": "FD", "ffn_down": "DF"},
    }
    if architecture in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm": "C", "attn_k_norm": "C"}
    if architecture == "gemma3":
        layer |= {"post_attention_norm": "D", "post_ffw_norm": "D"}
    shapes = {"token_embd.weight": "VD", "output_norm.weight": "D"}
    for index in range(2):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
        if architecture == "qwen2":
            shapes |= {
                f"blk.{index}.attn_{part}.bias": rows for part, rows in (("q", "Q"), ("k", "W"), ("v", "W"))
            }
    tensors = []
    for name, letters in shapes.items():
        kind = next((kind for ending, kind in kinds.items() if name.endswith(ending)), "Q4_0")
        shape = tuple(sizes[letter] for letter in letters)
        tensors.append(tensor(name, kind if len(shape) == 2 else "F32", shape, random))
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 2,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": 4 * unit,
        f"{architecture}.feed_forward_length": 8 * unit,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.attention.key_length": unit,
        f"{architecture}.attention.sliding_window": 16,
        **tokenizer(),
        **more,
    }
    return metadata, tensors
