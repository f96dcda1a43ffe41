"""Checkpoints with experts as transformers writes them, imported and run: logits against the same model's."""

from pathlib import Path

import pytest
from tiny_model import tokenizer_json

from ftd.engine import loader
from ftd.ftw import reader
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from tests.engine import tiny
from tests.engine.test_model import PROMPT, assert_close, build, graph_class, run

CASES = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt_oss",
    "granitemoe",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
)
IDS = {"vocab_size": 288, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@pytest.mark.parametrize("case", CASES)
def test_an_imported_checkpoint_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    oracle = tiny.make(case, **IDS)
    folder = tmp_path / "checkpoint"
    oracle.oracle.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    sink = DirectorySink(blobs)
    imported = import_safetensors({path.name: path for path in folder.iterdir()}, sink)
    config = reader.read_config(sink.path(imported.config_digest))
    paths = {blob.digest: sink.path(blob.digest) for blob in config.blobs}
    weights = loader.read_weights(config, paths, lambda done, total: None).weights
    read = tiny.Tiny(
        config.architecture,
        dict(config.hyperparameters),
        dict(weights.tensors),
        None,
        tuple(weights.banks.values()),
    )
    model = build(read, graph_class("cython"))
    assert_close(run(model, [(0, PROMPT, 0)]), oracle.logits(PROMPT))
