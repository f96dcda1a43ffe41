"""SmolLM2 cut into experts, no bit changed: with all of them chosen the answers are the dense model's."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from banks import make_bank
from numpy.typing import NDArray
from upcycle import upcycle

from ftd.engine import loader, model_config
from ftd.engine.model import Model
from ftd.engine.weights import Weights
from ftd.ftw import reader
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from ftd.kernels import dispatch
from ftd.kernels._pool import Pool
from ftd.kernels.quant import FORMATS, ExpertBank, QuantMatrix

IDS = np.array([504, 3575, 282, 4649, 314, 260, 7089, 30, 216, 34], np.int32)
NUM_EXPERTS = 8
ROOT = Path(__file__).parents[2]


def rows(matrix: QuantMatrix, part: int) -> QuantMatrix:
    """Return one of NUM_EXPERTS equal parts of the rows of ``matrix``."""
    size = matrix.shape[0] // NUM_EXPERTS
    planes = tuple(plane[part * size : (part + 1) * size] for plane in matrix.planes)
    return QuantMatrix(matrix.format, (size, matrix.shape[1]), planes)


def columns(matrix: QuantMatrix, part: int) -> QuantMatrix:
    """Return one of NUM_EXPERTS equal parts of the columns, times NUM_EXPERTS (a power of two: exact)."""
    planes = []
    for plane, spec in zip(matrix.planes, FORMATS[matrix.format].planes, strict=True):
        size = plane.shape[1] // NUM_EXPERTS
        piece = plane[:, part * size : (part + 1) * size]
        planes.append(
            np.ascontiguousarray(piece if spec.name == "codes" else piece * piece.dtype.type(NUM_EXPERTS))
        )
    return QuantMatrix(matrix.format, (matrix.shape[0], matrix.shape[1] // NUM_EXPERTS), tuple(planes))


def cut(tensors: dict[str, QuantMatrix], num_layers: int) -> tuple[dict[str, QuantMatrix], list[ExpertBank]]:
    """Return the tensors and banks of a Mixtral whose routers weight all experts alike."""
    dense, banks = dict(tensors), []
    for layer in range(num_layers):
        name = f"model.layers.{layer}.mlp"
        gate, up, down = (dense.pop(f"{name}.{part}_proj.weight") for part in ("gate", "up", "down"))
        parts = range(NUM_EXPERTS)
        experts = [{"gate": rows(gate, e), "up": rows(up, e), "down": columns(down, e)} for e in parts]
        banks.append(make_bank(layer, experts))
        router = np.zeros((NUM_EXPERTS, gate.shape[1]), np.float32)
        dense[f"{name}.gate.weight"] = QuantMatrix("f32", router.shape, (router,))
    return dense, banks


def logits(architecture: str, hyperparameters: dict[str, Any], weights: Weights) -> NDArray[np.float32]:
    """Return the logits of IDS."""
    with Pool(2) as pool:
        model = Model(
            model_config.make(architecture, hyperparameters),
            weights,
            dispatch.get("graph"),
            pool,
            num_pages=1,
            page_size=32,
            max_pages_per_sequence=1,
            max_tokens=len(IDS),
            max_sequences=1,
            max_logits=len(IDS),
            precision="f32",
        )
        positions = np.arange(len(IDS), dtype=np.int32)
        bounds, length = np.array([0, len(IDS)], np.int32), np.array([len(IDS)], np.int32)
        model.run(IDS, positions, positions, bounds, length, np.zeros((1, 1), np.int32), positions)
        return model.logits.copy()


@pytest.mark.slow
def test_experts_of_a_dense_model_add_up_to_it(smollm2_gguf: Path, tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    imported = import_gguf([smollm2_gguf], sink)
    config = reader.read_config(sink.path(imported.config_digest))
    paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
    weights = loader.read_weights(config, paths, lambda done, total: None).weights
    values = dict(config.hyperparameters)
    dense = logits("llama", values, weights)
    tensors, banks = cut(dict(weights.tensors), int(str(values["num_hidden_layers"])))
    chosen = {
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_EXPERTS,
        "moe_intermediate_size": int(str(values["intermediate_size"])) // NUM_EXPERTS,
    }
    all_experts = logits("mixtral", values | chosen, Weights(tensors, banks))
    assert np.abs(all_experts - dense).max() < 1e-4 * dense.std()
    # The comparison can fail: without one of the eight the model says something else.
    fewer = logits("mixtral", values | chosen | {"num_experts_per_tok": 7}, Weights(tensors, banks))
    assert np.abs(fewer - dense).max() > dense.std()


def test_columns_are_exact() -> None:
    rng = np.random.default_rng(0)
    scales = rng.standard_normal((4, 8)).astype("<f2")
    codes = rng.integers(0, 256, (4, 128)).astype(np.uint8)
    part = columns(QuantMatrix("q4_0", (4, 256), (codes, scales)), 1)
    np.testing.assert_array_equal(part.planes[0], codes[:, 16:32])
    np.testing.assert_array_equal(part.planes[1], scales[:, 1:2] * np.float16(8))


@pytest.mark.slow
@pytest.mark.parametrize(("num_experts", "num_chosen", "how"), [(4, 2, "permuted"), (8, 8, "split")])
def test_upcycled_files_say_what_the_dense_model_says(
    smollm2_gguf: Path, tmp_path: Path, num_experts: int, num_chosen: int, how: Literal["permuted", "split"]
) -> None:
    """The files of scripts/make-models, brought in as any GGUF: the logits of the dense model."""
    path = tmp_path / "experts.gguf"
    upcycle(smollm2_gguf, path, num_experts, num_chosen, how)
    all_logits = []
    for source in (smollm2_gguf, path):
        folder = tmp_path / source.stem
        folder.mkdir()
        sink = DirectorySink(folder)
        imported = import_gguf([source], sink)
        config = reader.read_config(sink.path(imported.config_digest))
        paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
        weights = loader.read_weights(config, paths, lambda done, total: None).weights
        all_logits.append(logits(config.architecture, dict(config.hyperparameters), weights))
    assert config.experts is not None and config.experts.num_experts == num_experts
    dense, experts = all_logits
    assert np.abs(experts - dense).max() < 1e-4 * dense.std()
    np.testing.assert_array_equal(experts.argmax(axis=1), dense.argmax(axis=1))


@pytest.mark.slow
def test_make_models_writes_checkpoints_that_can_be_brought_in(tmp_path: Path) -> None:
    """One family through the script; all of them are read in test_moe_checkpoints."""
    names = ["tiny-qwen3_moe"]
    command = [sys.executable, str(ROOT / "scripts" / "make-models"), *names, "--out", str(tmp_path / "m")]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert [path.name for path in (tmp_path / "m").iterdir()] == names
    (tmp_path / "blobs").mkdir()
    sink = DirectorySink(tmp_path / "blobs")
    imported = import_safetensors({path.name: path for path in (tmp_path / "m" / names[0]).iterdir()}, sink)
    assert imported.config.architecture == "qwen3_moe" and imported.config.experts is not None
    wrong = subprocess.run([*command[:2], "nosuch"], check=False, capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr == (
        "error: unknown model: nosuch\nhint: make-models --list\n"
    )
