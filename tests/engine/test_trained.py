"""Trained models of 32 experts (bf16) against transformers: Qwen3-MoE, and Qwen3.5-MoE with gated delta nets.

Logits, text and recorded routing; quantised on import against its own float weights; and served warm.
"""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine import loader, model_config
from ftd.engine.messages import Load
from ftd.engine.model import Model
from ftd.ftw import reader
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from ftd.kernels import dispatch
from tests.engine import steps
from tests.engine.serving import Serving

PAGE_SIZE = 32
NUM_TOKENS = 256
PROMPT_TOKENS = 48
# Largest error relative to the spread of the logits; the fast path keeps K and V in half precision, and where
# two experts are all but equal the other one may be chosen.
TOLERANCE = {
    ("tiny-moe", "f32"): 5e-4,
    ("tiny-moe", "fast"): 0.2,
    ("tiny-hybrid", "f32"): 1e-4,
    ("tiny-hybrid", "fast"): 0.05,
}
# Least share of recorded choices that are made again. They were recorded in bf16 on a card, where near ties
# may fall the other way.
SAME = {"tiny-moe": 0.97, "tiny-hybrid": 0.98}
HYBRID = pytest.mark.parametrize("folder", ["tiny-hybrid"], indirect=True, scope="module")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["tiny-moe", "tiny-hybrid"])
def folder(real_model: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """The checkpoint's folder."""
    return real_model(request.param)


@pytest.fixture(scope="module")
def trace(folder: Path) -> Any:
    """Recorded tokens [S] and the experts that they chose, [L, S, K]."""
    return np.load(folder / "routing.npz")


@pytest.fixture(scope="module")
def imported(folder: Path, tmp_path_factory: Any) -> Callable[[str | None], loader.Files]:
    """Imports the checkpoint with a quantisation, once."""

    def make(quantization: str | None) -> loader.Files:
        sink = DirectorySink(tmp_path_factory.mktemp(folder.name))
        files = {path.name: path for path in folder.iterdir()}
        made = import_safetensors(files, sink, quantization=quantization)
        path = sink.path(made.config_digest)
        return loader.Files(
            path, {blob.digest: sink.path(blob.digest) for blob in reader.read_config(path).blobs}
        )

    return cache(make)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    """transformers' model in float32."""
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded.eval()


def build(files: loader.Files, precision: str) -> Model:
    """Build the engine's model; every tensor must be of use."""
    weights = files.read(lambda done, total: None).weights
    model = Model(
        model_config.make(files.config.architecture, files.config.hyperparameters),
        weights,
        dispatch.get("graph"),
        None,
        num_pages=NUM_TOKENS // PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_pages_per_sequence=NUM_TOKENS // PAGE_SIZE,
        max_tokens=NUM_TOKENS,
        max_sequences=1,
        max_logits=NUM_TOKENS,
        precision=precision,
    )
    assert weights.unused() == []
    return model


def run(model: Model, ids: list[int], start: int) -> NDArray[np.float32]:
    """Run ids at positions from ``start`` on and return their logits."""
    table = np.arange(NUM_TOKENS // PAGE_SIZE, dtype=np.int32)[None]
    arrays = steps.arrays([(0, ids, start)], table, PAGE_SIZE)
    model.run(*arrays, np.arange(len(ids), dtype=np.int32), np.zeros(1, np.int32))
    return model.logits.copy()


def theirs(oracle: Any, ids: list[int]) -> NDArray[np.float32]:
    """Return transformers' logits of ``ids``."""
    import torch

    with torch.no_grad():
        logits: NDArray[np.float32] = oracle(torch.tensor([ids])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_logits_and_recorded_routing(
    folder: Path, imported: Any, oracle: Any, trace: Any, precision: str
) -> None:
    ids = [int(token) for token in trace["tokens"][:NUM_TOKENS]]
    model = build(imported(None), precision)
    ours, expected = run(model, ids, 0), theirs(oracle, ids)
    error = np.abs(ours - expected).max() / expected.std()
    assert error < TOLERANCE[folder.name, precision], error
    chosen = np.stack([np.sort(experts, axis=1) for experts in model.routed().values()])
    recorded = np.sort(trace["routing"][:, :NUM_TOKENS].astype(np.int32), axis=2)
    same = (chosen[:, :, :, None] == recorded[:, :, None, :]).any(axis=3).mean()
    assert same > SAME[folder.name], same
    for row, uses in zip(chosen, model.expert_uses().values(), strict=True):
        counts = np.bincount(row.reshape(-1), minlength=32)
        np.testing.assert_array_equal(uses[:32], counts)
        assert uses[32] == np.count_nonzero(counts)


@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_greedy_text(imported: Any, oracle: Any, trace: Any, precision: str) -> None:
    ids = [int(token) for token in trace["tokens"][:PROMPT_TOKENS]]
    model = build(imported(None), precision)
    ours, logits = list(ids), run(model, ids, 0)
    for _ in range(64):
        ours.append(int(logits[-1].argmax()))
        logits = run(model, ours[-1:], len(ours) - 1)
    # One pass over the whole text says what transformers would have chosen at each place of it
    chosen = theirs(oracle, ours).argmax(axis=1).tolist()
    assert ours[PROMPT_TOKENS:] == chosen[PROMPT_TOKENS - 1 : -1]


@HYBRID
@pytest.mark.parametrize("quantization", ["q8_0", "q4_0"])
def test_rounded_activations_change_little(imported: Any, trace: Any, quantization: str) -> None:
    ids = [int(token) for token in trace["tokens"][:NUM_TOKENS]]
    exact, fast = (run(build(imported(quantization), precision), ids, 0) for precision in ("f32", "fast"))
    cosine = (exact * fast).sum() / np.sqrt(np.square(exact).sum() * np.square(fast).sum())
    assert cosine >= 0.9995, cosine


@HYBRID
def test_quantised_weights_stay_near_their_source(imported: Any, oracle: Any, trace: Any) -> None:
    ids = [int(token) for token in trace["tokens"][:NUM_TOKENS]]
    ours, expected = run(build(imported("q8_0"), "f32"), ids, 0), theirs(oracle, ids)
    cosine = (ours * expected).sum() / np.sqrt(np.square(ours).sum() * np.square(expected).sum())
    assert cosine >= 0.9995, cosine


@HYBRID
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_a_conversation_goes_on_warm_as_cold(imported: Any, trace: Any, precision: Any) -> None:
    files = imported("q8_0")
    load = Load(
        config_path="",
        blob_paths={},
        context_tokens=1024,
        max_sequences=2,
        num_threads=1,
        precision=precision,
        debug_checks=True,
    )
    serving = Serving(load, files)
    try:
        prompt = [int(token) for token in trace["tokens"][:300]]
        for turn in range(3):
            cold = serving.start(prompt, max_tokens=70, cache_salt=f"nobody else's {turn}")
            serving.run()
            warm = serving.start(prompt, max_tokens=70)
            serving.run()
            assert serving.tokens(warm) == serving.tokens(cold)
            assert serving.finished(cold).cached_tokens == 0
            # of a turn before, all whole pages of its prompt and text but the last id
            assert serving.finished(warm).cached_tokens == (0 if turn == 0 else (len(prompt) - 21) // 32 * 32)
            prompt = prompt + serving.tokens(warm) + [int(token) for token in trace["tokens"][500:520]]
    finally:
        serving.close()
