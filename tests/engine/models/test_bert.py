"""Encoders against transformers on tiny random weights: from a folder and from GGUF, alone and together."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine.engine import Engine
from ftd.engine.messages import Embed, Embedded, Failed, Generate, Load, Up
from ftd.errors import InvalidRequest, PromptTooLong, Unsupported
from ftd.ftw.hf_names import canonical
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.imported import ImportedModel
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize
from tests.engine import encoders

ARCHITECTURES = tuple(encoders.CASES)
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 100, 257)
# Largest error relative to the spread of the hidden states
TOLERANCE = {"f32": 1e-4, "fast": 1e-2}


def prompt(length: int) -> list[int]:
    """Return ids of a text, the same for the same length."""
    return [int(token) for token in np.random.default_rng(length).integers(5, 160, length)]


def load(sink: DirectorySink, imported: ImportedModel, **changes: Any) -> tuple[Engine, list[Up]]:
    """Return an engine on an imported model, and the list of what it sends."""
    sent: list[Up] = []
    settings: dict[str, Any] = {"context_tokens": 300, "precision": "f32", "num_threads": 2} | changes
    message = Load(
        config_path=str(sink.path(imported.config_digest)),
        blob_paths={blob.digest: str(sink.path(blob.digest)) for blob in imported.config.blobs},
        debug_checks=True,
        **settings,
    )
    return Engine(message, sent.append), sent


def embed(engine: Engine, sent: list[Up], sequences: list[list[int]], pooling: Any) -> NDArray[np.float32]:
    """Return the vectors of ``sequences``."""
    engine.embed(Embed(request_id=len(sent), sequences=sequences, pooling=pooling))
    while engine.has_work:
        engine.step()
    answer = sent[-1]
    assert isinstance(answer, Embedded) and answer.prompt_tokens == sum(map(len, sequences))
    return np.frombuffer(answer.data, "<f4").reshape(len(sequences), answer.width)


@cache
def states_of(model: Any, length: int) -> NDArray[np.float32]:
    """Return transformers' hidden states of ``prompt(length)``, which several tests ask for."""
    return encoders.hidden(model, prompt(length))


def pooled(model: Any, length: int, pooling: str) -> NDArray[np.float32]:
    """Return the vector of ``prompt(length)``."""
    states = states_of(model, length)
    return {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def oracle(request: pytest.FixtureRequest) -> Any:
    """Every kind of encoder."""
    return encoders.make(request.param)


@pytest.fixture(scope="module")
def importer(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Imports the model from "folder", "gguf" or "fused" (a GGUF file with q, k and v in one tensor)."""

    def make(source: str) -> tuple[DirectorySink, ImportedModel]:
        folder = tmp_path_factory.mktemp("model")
        (folder / "blobs").mkdir()
        sink = DirectorySink(folder / "blobs")
        if source == "folder":
            return sink, import_safetensors(encoders.write_folder(oracle, folder / "hf"), sink)
        encoders.write_gguf(oracle, folder / "model.gguf", fused=source == "fused")
        return sink, import_gguf([folder / "model.gguf"], sink)

    return make


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_vectors_are_those_of_transformers(
    oracle: Any, importer: Callable[[str], Any], source: str, precision: str
) -> None:
    engine, sent = load(*importer(source), precision=precision)
    with engine:
        for pooling in ("mean", "cls", "last"):
            ours = embed(engine, sent, [prompt(length) for length in LENGTHS], pooling)
            for length, vector in zip(LENGTHS, ours, strict=True):
                theirs = pooled(oracle, length, pooling)
                assert np.abs(vector - theirs).max() <= TOLERANCE[precision] * theirs.std(), (pooling, length)


def test_q_k_and_v_may_be_one_tensor(tmp_path: Path) -> None:
    oracle = encoders.make("nomic_bert")
    encoders.write_gguf(oracle, tmp_path / "model.gguf", fused=True)
    sink = DirectorySink(tmp_path)
    engine, sent = load(sink, import_gguf([tmp_path / "model.gguf"], sink))
    with engine:
        ours = embed(engine, sent, [prompt(33)], "mean")[0]
    np.testing.assert_allclose(ours, pooled(oracle, 33, "mean"), atol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_together_equals_alone_bit_for_bit(importer: Callable[[str], Any], count: int) -> None:
    """Sequences never share a step in parts: what fits runs whole, the others wait."""
    engine, sent = load(*importer("folder"), precision="fast")
    texts = [prompt(1 + 37 * index % 290) for index in range(count)]
    with engine:
        together = embed(engine, sent, texts, "mean")
        alone = [embed(engine, sent, [text], "mean")[0] for text in texts]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_quantised_weights_against_the_same_values(oracle: Any, tmp_path: Path, precision: str) -> None:
    import torch

    encoders.write_gguf(oracle, tmp_path / "model.gguf")
    sink = DirectorySink(tmp_path)
    engine, sent = load(
        sink, import_gguf([tmp_path / "model.gguf"], sink, quantization="q8_0"), precision=precision
    )
    rounded = copy.deepcopy(oracle)
    state = rounded.state_dict()
    for word, name in canonical({name: name for name in state}, oracle.config.model_type).items():
        values = dequantize(engine.weights.tensors[word])
        state[name].copy_(torch.from_numpy(values.reshape(state[name].shape)))
    with engine:
        vector = embed(engine, sent, [prompt(100)], "mean")[0].astype(np.float64)
    theirs = pooled(rounded, 100, "mean").astype(np.float64)
    assert engine.weights.tensors["model.layers.0.mlp.up_proj.weight"].format == "q8_0"
    assert vector @ theirs / np.linalg.norm(vector) / np.linalg.norm(theirs) > 0.9995
    if precision == "f32":
        assert np.abs(vector - theirs).max() <= TOLERANCE["f32"] * theirs.std()


def test_what_a_folder_says_about_its_vectors(importer: Callable[[str], Any], oracle: Any) -> None:
    _, imported = importer("folder")
    architecture = oracle.config.model_type
    assert imported.config.metadata[f"{architecture}.pooling_type"] == 2
    assert imported.config.metadata[f"{architecture}.normalize_embeddings"] is True
    assert imported.parameters == {"num_ctx": 24}
    tokens = imported.config.tokens
    assert (tokens.bos_id, tokens.eos_ids, tokens.add_bos, tokens.add_eos) == (2, [3], True, True)


def test_gguf_and_folder_frame_texts_alike(importer: Callable[[str], Any]) -> None:
    tokens = importer("gguf")[1].config.tokens
    assert (tokens.bos_id, tokens.eos_ids, tokens.add_bos, tokens.add_eos) == (2, [3], True, True)


def test_an_encoder_generates_nothing_and_refuses_long_texts(importer: Callable[[str], Any]) -> None:
    engine, sent = load(*importer("folder"), context_tokens=64)
    with engine:
        with pytest.raises(InvalidRequest, match="embeds text and generates none"):
            engine.generate(Generate(request_id=1, ids=[5]))
        with pytest.raises(PromptTooLong, match="65 tokens, context window 64"):
            engine.embed(Embed(request_id=2, sequences=[prompt(3), prompt(65)]))
        assert not engine.has_work and not any(isinstance(message, Failed) for message in sent)
        assert len(embed(engine, sent, [prompt(64)], "mean")) == 1


def test_a_decoder_in_the_clothes_of_an_encoder_is_refused(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "model.gguf"
    oracle = encoders.make("bert")
    encoders.write_gguf(oracle, path)
    gguf_file = path.read_bytes().replace(
        b"bert.attention.causal\x07\0\0\0\0", b"bert.attention.causal\x07\0\0\0\1"
    )
    assert gguf_file != path.read_bytes() and gguf.GGUF_MAGIC
    path.write_bytes(gguf_file)
    with pytest.raises(Unsupported, match="attends causally"):
        import_gguf([path], DirectorySink(tmp_path))
