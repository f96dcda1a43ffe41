"""Decoders published as embedding models (the kind of Qwen3-Embedding), against transformers.

The bare model lies in a sentence-transformers folder whose tokenizer ends texts with an eos.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_model import EOS, tokenizer_json
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import processors

from ftd.chat.tokenizer import Tokenizer
from ftd.engine.messages import Embed, Embedded, Load
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.sink import DirectorySink
from tests.engine import tiny
from tests.engine.serving import Serving

TEXTS = ["a", "what is the capital of France?", "", "x" * 60]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder as it would be published."""
    folder = tmp_path / "model"
    oracle = tiny.make("qwen3", tie_word_embeddings=True, vocab_size=288, eos_token_id=EOS)
    oracle.oracle.model.save_pretrained(folder)
    tokenizer = HfTokenizer.from_str(tokenizer_json().decode())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", EOS)]
    )
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_vectors_are_the_last_state_of_the_text_and_its_eos(folder: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    sink = DirectorySink(tmp_path)
    imported = import_safetensors(files, sink)
    assert imported.config.metadata["qwen3.pooling_type"] == 3
    assert imported.config.tokens.add_eos and imported.config.tokens.eos_ids == [EOS]
    tokenizer = Tokenizer.from_json(files["tokenizer.json"].read_bytes(), imported.config.tokens)
    ids = [tokenizer.encode_document(text) for text in TEXTS]
    assert all(row[-1] == EOS for row in ids) and ids[2] == [EOS]
    load = Load(
        config_path=str(sink.path(imported.config_digest)),
        blob_paths={blob.digest: str(sink.path(blob.digest)) for blob in imported.config.blobs},
        context_tokens=128,
        precision="f32",
        prefill_chunk_tokens=16,
    )
    serving = Serving(load)
    serving.engine.embed(Embed(request_id=1, sequences=ids, pooling="last"))
    serving.run()
    serving.close()
    (answer,) = [message for message in serving.sent if isinstance(message, Embedded)]
    vectors = np.frombuffer(answer.data, "<f4").reshape(len(ids), answer.width)
    model = transformers.AutoModel.from_pretrained(folder).float().eval()
    for row, vector in zip(ids, vectors, strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor([row])).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(vector, theirs, atol=1e-4)
