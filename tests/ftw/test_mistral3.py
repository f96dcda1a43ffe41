"""Mistral Small 3 as Ollama's converters write it, against the same model as a llama."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_bytes
import numpy as np
import pytest

from ftd.errors import Unsupported
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.mistral3 import translated
from ftd.ftw.sink import DirectorySink

Save = Callable[[str, bytes], Path]


def imported(architecture: str, save: Save, folder: Path, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters of an imported file, and the digests of its weights."""
    metadata, tensors = gguf_bytes.model(architecture)
    if architecture == "mistral3":
        pictures = gguf_bytes.tensor("v.patch_conv.weight", "F32", (4, 8), np.random.default_rng(1))
        metadata, tensors = metadata | {"mistral3.vision.block_count": 24}, [*tensors, pictures]
    more = {f"{architecture}.{key}": value for key, value in more.items()}
    path = save(f"{architecture}.gguf", gguf_bytes.gguf(metadata | more, tensors))
    config = import_gguf([path], DirectorySink(folder)).config
    assert config.architecture == "llama"
    return dict(config.hyperparameters), [blob.digest for blob in config.blobs]


def test_it_is_a_llama_beside_which_pictures_are_left_out(save: Save, tmp_path: Path) -> None:
    assert imported("mistral3", save, tmp_path) == imported("llama", save, tmp_path)


def test_yarn_is_read_under_either_name(save: Save, tmp_path: Path) -> None:
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 16.0,
        "rope.scaling.original_context_length": 16,
    }
    ollamas = {"rope.scaling.beta_fast": 31.0, "rope.scaling.beta_slow": 2.0}
    hyper, _ = imported("mistral3", save, tmp_path, **yarn, **ollamas, **{"rope.scaling.mscale_all_dim": 0.1})
    llamas = {"rope.scaling.yarn_beta_fast": 31.0, "rope.scaling.yarn_beta_slow": 2.0}
    wanted, _ = imported(
        "llama", save, tmp_path, **yarn, **llamas, **{"rope.scaling.yarn_log_multiplier": 0.1}
    )
    assert hyper == wanted
    assert hyper["rope_scaling"]["beta_fast"] == 31.0


@pytest.mark.parametrize("key", ["rope.scaling_beta", "attention.temperature_scale"])
def test_queries_scaled_by_their_position_are_refused(key: str) -> None:
    assert translated({f"mistral3.{key}": 0.0})
    with pytest.raises(Unsupported, match=r"temperature_scale is not supported: 0\.1"):
        translated({f"mistral3.{key}": 0.1})


@pytest.mark.parametrize(
    ("said", "wanted"), [(None, "tekken"), ("default", "tekken"), ("", "tekken"), ("llama-bpe", "llama-bpe")]
)
def test_the_pre_tokenizer_is_tekken_where_none_is_named(said: str | None, wanted: str) -> None:
    metadata = {} if said is None else {"tokenizer.ggml.pre": said}
    assert translated(metadata)["tokenizer.ggml.pre"] == wanted
