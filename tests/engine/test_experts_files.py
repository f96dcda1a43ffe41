"""The files that bench-experts gives to other programs, against transformers, gguf and the engine itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_module import load_script

from ftd.engine.engine import Engine
from ftd.engine.locality import Locality
from ftd.engine.messages import Generate, Load, SamplingParams, Tokens, Up
from ftd.engine.synthetic import Synthetic
from ftd.kernels.dequantize_ref import dequantize

LOCALITY = Locality(topics=8, tokens=16)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the script."""
    return load_script(monkeypatch, "experts_files.py")


@pytest.mark.parametrize("format_name", ["q4_0", "bf16"])
def test_a_gguf_holds_the_weights_of_the_engine(files: Any, tmp_path: Path, format_name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="reads the file")
    source = Synthetic("tiny-moe", format_name, locality=LOCALITY)
    kept = files.weights_of("tiny-moe", format_name, 2, LOCALITY, source)
    files.write_gguf(tmp_path / "m.gguf", "tiny-moe", 2, kept)
    found = {each.name: each for each in gguf.GGUFReader(str(tmp_path / "m.gguf")).tensors}
    assert len(found) == len(kept.matrices) + 2 * 3

    def values(name: str) -> Any:
        return gguf.quants.dequantize(found[name].data, found[name].tensor_type)

    gate_up = dequantize(kept.kept_banks[1].matrices["gate_up"].expert(3))
    np.testing.assert_array_equal(values("blk.1.ffn_gate_exps.weight")[3], gate_up[:256])
    np.testing.assert_array_equal(values("blk.1.ffn_up_exps.weight")[3], gate_up[256:])
    query = dequantize(kept.matrices["model.layers.1.self_attn.q_proj.weight"])
    np.testing.assert_array_equal(values("blk.1.attn_q.weight"), query)


def test_a_gguf_of_a_dense_model(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf", reason="reads the file")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    others = {"vocab_size": 320, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    monkeypatch.setitem(files.SHAPES, "dense", ("llama", {**sizes, **others, "num_hidden_layers": 2}))
    kept = files.weights_of("dense", "q4_0", 2, None, Synthetic("dense", "q4_0"))
    files.write_gguf(tmp_path / "m.gguf", "dense", 2, kept)
    reader = gguf.GGUFReader(str(tmp_path / "m.gguf"))
    found = {each.name: each for each in reader.tensors}
    assert len(found) == len(kept.matrices) == 2 * 9 + 3
    assert reader.fields["llama.attention.key_length"].contents() == 16
    up = gguf.quants.dequantize(found["blk.1.ffn_up.weight"].data, found["blk.1.ffn_up.weight"].tensor_type)
    np.testing.assert_array_equal(up, dequantize(kept.matrices["model.layers.1.mlp.up_proj.weight"]))


@pytest.mark.slow
def test_transformers_says_the_same_of_a_folder(files: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    transformers = pytest.importorskip("transformers", reason="the oracle")
    source = Synthetic("tiny-moe", "bf16", locality=LOCALITY)
    files.write_folder(tmp_path, "tiny-moe", 2, files.weights_of("tiny-moe", "bf16", 2, LOCALITY, source))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path), dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ids = LOCALITY.text(20, 3)
    assert tokenizer(" ".join(f"w{each}" for each in ids))["input_ids"] == ids
    with torch.no_grad():
        theirs = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
    sent: list[Up] = []
    load = Load(config_path="", blob_paths={}, context_tokens=64, max_sequences=1, precision="f32")
    with Engine(load, sent.append, source=source) as engine:
        greedy = SamplingParams(temperature=0.0)
        engine.generate(Generate(request_id=1, ids=ids, max_tokens=1, sampling=greedy, num_logprobs=10))
        while engine.has_work:
            engine.step()
    found = next(each for each in sent if isinstance(each, Tokens)).logprobs
    assert found is not None
    for token, logprob in found[0].top:
        assert logprob == pytest.approx(float(theirs[token]), abs=2e-3)
