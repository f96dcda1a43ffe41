"""A trained model of 32 experts (Qwen3-MoE, bf16) against transformers: logits, text and recorded routing."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftd.engine import loader, model_config
from ftd.engine.model import Model
from ftd.ftw import reader
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from ftd.kernels import dispatch
from ftd.kernels._pool import Pool

PAGE_SIZE = 32
NUM_TOKENS = 256
PROMPT_TOKENS = 48
# Largest error relative to the spread of the logits; the fast path keeps K and V in half precision, and where
# two experts are all but equal the other one may be chosen.
TOLERANCE = {"f32": 5e-4, "fast": 0.2}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(real_model: Callable[[str], Path]) -> Path:
    """The checkpoint's folder."""
    return real_model("tiny-moe")


@pytest.fixture(scope="module")
def trace(folder: Path) -> Any:
    """Recorded tokens [S] and the experts that they chose, [L, S, K]."""
    return np.load(folder / "routing.npz")


@pytest.fixture(scope="module", params=["f32", "fast"])
def model(folder: Path, request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Model]:
    """The engine's model of the imported checkpoint."""
    sink = DirectorySink(tmp_path_factory.mktemp("tiny-moe"))
    files = {path.name: path for path in folder.iterdir()}
    imported = import_safetensors(files, sink)
    config = reader.read_config(sink.path(imported.config_digest))
    paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
    weights = loader.read_weights(config, paths, lambda done, total: None).weights
    with Pool(2) as pool:
        yield Model(
            model_config.make(config.architecture, config.hyperparameters),
            weights,
            dispatch.get("graph"),
            pool,
            num_pages=NUM_TOKENS // PAGE_SIZE,
            page_size=PAGE_SIZE,
            max_pages_per_sequence=NUM_TOKENS // PAGE_SIZE,
            max_tokens=NUM_TOKENS,
            max_sequences=1,
            max_logits=NUM_TOKENS,
            precision=request.param,
        )
    assert weights.unused() == []


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    """transformers' model in float32."""
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded.eval()


def run(model: Model, ids: list[int], start: int) -> np.ndarray[Any, Any]:
    """Run ids at positions from ``start`` on and return their logits."""
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    model.run(
        np.array(ids, np.int32),
        positions,
        positions,
        np.array([0, len(ids)], np.int32),
        np.array([start + len(ids)], np.int32),
        np.arange(NUM_TOKENS // PAGE_SIZE, dtype=np.int32)[None],
        np.arange(len(ids), dtype=np.int32),
    )
    return model.logits.copy()


def precision_of(model: Model) -> str:
    """Return the precision that the model computes with."""
    return "f32" if model.kv_pool.k[0].dtype == np.float32 else "fast"


def test_logits_and_recorded_routing(model: Model, oracle: Any, trace: Any) -> None:
    import torch

    ids = [int(token) for token in trace["tokens"][:NUM_TOKENS]]
    before = {layer: uses.copy() for layer, uses in model.expert_uses().items()}
    ours = run(model, ids, 0)
    with torch.no_grad():
        theirs = oracle(torch.tensor([ids])).logits[0].numpy()
    error = np.abs(ours - theirs).max() / theirs.std()
    assert error < TOLERANCE[precision_of(model)], error
    chosen = np.stack([np.sort(experts, axis=1) for experts in model.routed().values()])
    recorded = np.sort(trace["routing"][:, :NUM_TOKENS].astype(np.int32), axis=2)
    # The trace was recorded in bf16 on a card: near ties may fall the other way there.
    same = (chosen[:, :, :, None] == recorded[:, :, None, :]).any(axis=3).mean()
    assert same > 0.97, same
    for layer, uses in model.expert_uses().items():
        counts = np.bincount(chosen[layer].reshape(-1), minlength=32)
        np.testing.assert_array_equal(uses[:32] - before[layer][:32], counts)
        assert uses[32] - before[layer][32] == np.count_nonzero(counts)


def test_greedy_text(model: Model, oracle: Any, trace: Any) -> None:
    import torch

    ids = [int(token) for token in trace["tokens"][:PROMPT_TOKENS]]
    ours, logits = list(ids), run(model, ids, 0)
    for _ in range(64):
        ours.append(int(logits[-1].argmax()))
        logits = run(model, ours[-1:], len(ours) - 1)
    # One pass over the whole text says what transformers would have chosen at each place of it.
    with torch.no_grad():
        theirs = oracle(torch.tensor([ours])).logits[0].argmax(dim=1).tolist()
    assert ours[PROMPT_TOKENS:] == theirs[PROMPT_TOKENS - 1 : -1]
