"""Gemma 3 of text and pictures as transformers and the hub have it: of such a model the text is imported."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_model import tokenizer_json

from ftd.ftw.hf_config import GEMMA3_DEFAULTS
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from tests.engine import tiny
from tests.engine.test_hybrid_checkpoints import SPECIAL, read
from tests.engine.test_model import PROMPT, assert_close, build, graph_class, run

VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def whole_of(text: tiny.Tiny) -> Any:
    """Return a model of text and pictures around the text of ``text``."""
    import torch
    import transformers

    config = transformers.Gemma3Config(
        text_config=text.oracle.config.to_dict(), vision_config=VISION, mm_tokens_per_image=4
    )
    torch.manual_seed(2)
    whole = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    whole.model.language_model.load_state_dict(text.oracle.model.state_dict())
    return whole


@pytest.mark.parametrize("names", ["language_model.model.", "model.language_model."])
def test_the_text_computes_what_it_does_alone(names: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    text = tiny.make("gemma3_text", **SPECIAL)
    folder = tmp_path / "checkpoint"
    whole_of(text).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    stored = load_file(folder / "model.safetensors")
    found = "language_model.model."  # the hub's names, in which transformers writes
    assert sum(name.startswith(found) for name in stored) == len(text.tensors)
    assert any("vision_tower" in name for name in stored)
    rest = names.partition("language_model")[0]
    renamed = {
        names + name.removeprefix(found) if name.startswith(found) else rest + name: tensor
        for name, tensor in stored.items()
    }
    save_file(renamed, folder / "model.safetensors")
    sink = DirectorySink(tmp_path)
    model = read(sink, import_safetensors({path.name: path for path in folder.iterdir()}, sink))
    assert model.architecture == "gemma3_text"
    assert not any("vision" in name or "projector" in name for name in model.tensors)
    assert_close(run(build(model, graph_class("cython")), [(0, PROMPT, 0)]), text.logits(PROMPT))


def test_what_files_leave_out_is_what_transformers_has() -> None:
    import transformers

    theirs = transformers.Gemma3TextConfig()
    assert {name: getattr(theirs, name) for name in GEMMA3_DEFAULTS} == GEMMA3_DEFAULTS


def test_a_config_of_the_hub_is_filled_up(tmp_path: Path) -> None:
    text = tiny.make("gemma3_text", **SPECIAL, num_attention_heads=8, num_key_value_heads=4, head_dim=256)
    folder = tmp_path / "checkpoint"
    whole_of(text).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    path = folder / "config.json"
    config = json.loads(path.read_text())
    kept = (
        "hidden_size",
        "intermediate_size",
        "model_type",
        "num_hidden_layers",
        "sliding_window",
        "vocab_size",
    )
    config["text_config"] = {name: config["text_config"][name] for name in kept} | {
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
    }
    path.write_text(json.dumps(config))
    sink = DirectorySink(tmp_path)
    model = read(sink, import_safetensors({path.name: path for path in folder.iterdir()}, sink))
    hyper = model.hyperparameters
    assert (hyper["num_attention_heads"], hyper["num_key_value_heads"], hyper["head_dim"]) == (8, 4, 256)
    assert (hyper["rope_theta"], hyper["rope_local_base_freq"]) == (1e6, 1e4)
    assert hyper["rope_scaling"]["factor"] == 8.0 and hyper["query_pre_attn_scalar"] == 256
    assert hyper["hidden_activation"] == "gelu_pytorch_tanh" and hyper["max_position_embeddings"] == 131072
