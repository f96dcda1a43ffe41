"""Every block type in every kind of matrix: a GGUF file computes the bits of its values as the gguf package
dequantises them, written as floats into a second file.
"""

from pathlib import Path
from typing import Any

import gguf
import gguf_bytes
import numpy as np
import pytest
from examples import first_quick

from tests.engine import peer, test_latent_gguf, test_peer, tiny
from tests.engine.test_model import PROMPT, build, graph_class, run

KINDS = sorted(gguf_bytes.BLOCKS.keys() - {"F32", "MXFP4_PAIRS"}, key=lambda kind: (kind != "Q4_K", kind))
# Rows of whole blocks of 256
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 512}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {"num_hidden_layers": 6},
    "mixtral": {},
    "qwen2_moe": {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
    "qwen3_moe": {"moe_intermediate_size": 256},
    "olmoe": {},
    "granitemoe": {},
    "gpt_oss": {"num_hidden_layers": 3},
}


def write(folder: Path, case: str, model: tiny.Tiny, tensors: dict[str, Any]) -> Path:
    architecture, _, settings = test_peer.CASES[case]
    sizes = {key: 256 for key in settings if key.endswith("feed_forward_length")}
    folder.mkdir()
    peer.write_gguf(model, architecture, folder / "model.gguf", settings | sizes, tensors)
    return folder


def logits(folder: Path) -> tuple[np.ndarray[Any, Any], set[str]]:
    """Import the file and return the logits of a prompt in float32, and the formats of the matrices."""
    model = test_latent_gguf.read(folder / "model.gguf", folder)
    formats = {matrix.format for matrix in model.tensors.values() if matrix.shape[0] > 1}
    formats |= {part.format for bank in model.banks for part in bank.matrices.values() if part.shape[0] > 1}
    return run(build(model, graph_class("cython")), [(0, PROMPT, 0)]), formats


def blocks_of(values: np.ndarray[Any, Any], kind: str, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return blocks of a type in the shape of a matrix: of random codes, or the values rounded."""
    shape = (*values.shape[:-1], -1)
    if kind == "F16":
        return values.astype(np.float16).view(np.uint8).reshape(shape)
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(shape)
    raw = gguf_bytes.blocks(kind, values.size // values.shape[-1], values.shape[-1], random)
    return np.ascontiguousarray(raw).reshape(shape)


@pytest.mark.parametrize("kind", first_quick(*KINDS))
@pytest.mark.parametrize("case", first_quick(*CASES))
def test_a_file_computes_what_its_values_do(case: str, kind: str, tmp_path: Path) -> None:
    architecture, changes, _ = test_peer.CASES[case]
    model = tiny.make(case, **{**SIZES, **changes, **CASES[case]})
    random, type_ = np.random.default_rng(5), gguf.GGMLQuantizationType[kind]
    coded: dict[str, Any] = {}
    floats: dict[str, Any] = {}
    for name, values in peer.tensors_of(model, architecture).items():
        coded[name] = floats[name] = values
        is_whole = values.shape[-1] % gguf_bytes.BLOCKS[kind][1] == 0
        if values.ndim >= 2 and is_whole and not name.endswith("bias"):
            blocks = blocks_of(values, kind, random)
            floats[name] = gguf.quants.dequantize(blocks, type_).astype(np.float32)
            coded[name] = (blocks, type_)
    found, formats = logits(write(tmp_path / "coded", case, model, coded))
    wanted, plain = logits(write(tmp_path / "floats", case, model, floats))
    assert formats - {"f32"} == {kind.lower()} and plain == {"f32"}
    assert np.ptp(wanted) > 1
    np.testing.assert_array_equal(found, wanted)
