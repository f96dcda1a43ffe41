"""Gemma 3 as Ollama's converters write it, old and new, against the same model in llama.cpp's words."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_bytes
import numpy as np
import pytest

from ftd.errors import InvalidGguf
from ftd.ftw.gemma3 import translated
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.sink import DirectorySink

Save = Callable[[str, bytes], Path]
SAID = ("rope.freq_base", "rope.freq_base_swa", "attention.layer_norm_rms_epsilon", "attention.key_length")


def written(gguf: bool = True, pictures: bool = False, **more: Any) -> bytes:
    """Return a file of head size 256: in llama.cpp's words, or with what Ollama leaves out left out."""
    metadata, tensors = gguf_bytes.model("gemma3", unit=256)
    if gguf:
        metadata |= {"gemma3.rope.freq_base": 1e6, "gemma3.rope.freq_base_swa": 1e4}
    for name in () if gguf else SAID:
        metadata.pop(f"gemma3.{name}", None)
    if gguf:
        metadata["gemma3.attention.layer_norm_rms_epsilon"] = 1e-6
    if pictures:
        random = np.random.default_rng(1)
        metadata["gemma3.vision.block_count"] = 27
        names = ("v.blk.0.attn_q.weight", "v.patch_embedding.weight", "mm.mm_input_projection.weight")
        tensors = [*tensors, *(gguf_bytes.tensor(name, "F32", (4, 8), random) for name in names)]
    return gguf_bytes.gguf(metadata | {f"gemma3.{key}": value for key, value in more.items()}, tensors)


def imported(path: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters of an imported file, and the digests of its weights."""
    config = import_gguf([path], DirectorySink(folder)).config
    return dict(config.hyperparameters), [blob.digest for blob in config.blobs]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope.global.freq_base": 1e6, "rope.local.freq_base": 1e4, "final_logit_softcapping": 30.0},
        {"rope.freq_base": 1e6, "rope.local.freq_base": 1e4, "attention.layer_norm_rms_epsilon": 1e-6},
        {"attention.sliding_window_pattern": [True, True]},
        {"pictures": True},
    ],
)
def test_ollamas_files_are_the_same_model(changes: dict[str, Any], save: Save, tmp_path: Path) -> None:
    wanted = imported(save("llama.gguf", written()), tmp_path)
    assert imported(save("ollama.gguf", written(gguf=False, **changes)), tmp_path) == wanted
    hyper = wanted[0]
    assert (hyper["rope_theta"], hyper["rope_local_base_freq"], hyper["rms_norm_eps"]) == (1e6, 1e4, 1e-6)
    assert hyper["head_dim"] == 256 and hyper["rope_scaling"] is None


def test_other_bases_and_windows_are_read(save: Save, tmp_path: Path) -> None:
    more = {"rope.global.freq_base": 5e5, "rope.local.freq_base": 777.0}
    path = save("m.gguf", written(gguf=False, **more, **{"attention.sliding_window_pattern": [False, True]}))
    hyper, _ = imported(path, tmp_path)
    assert (hyper["rope_theta"], hyper["rope_local_base_freq"]) == (5e5, 777.0)
    assert hyper["layer_types"] == ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("layers", "pictures", "factor"), [(34, 1, 8.0), (48, 1, 8.0), (62, 1, 8.0), (26, 1, None), (34, 0, None)]
)
def test_from_4b_on_positions_are_scaled(layers: int, pictures: int, factor: float | None) -> None:
    metadata: dict[str, Any] = {"gemma3.block_count": layers}
    metadata |= {"gemma3.vision.block_count": 27} if pictures else {}
    assert translated(metadata).get("gemma3.rope.scaling.factor") == factor
    assert translated(metadata | {"gemma3.rope.scaling.factor": 4.0})["gemma3.rope.scaling.factor"] == 4.0


def test_no_blank_is_put_before_a_text_unless_the_file_says_so() -> None:
    key = "tokenizer.ggml.add_space_prefix"
    assert translated({})[key] is False
    assert translated({key: True})[key] is True


def test_tokens_of_pictures_that_are_not_embedded_are_left_out(save: Save, tmp_path: Path) -> None:
    metadata, tensors = gguf_bytes.model("gemma3", unit=256)
    texts = [*gguf_bytes.VOCABULARY, *(f"<{index}>" for index in range(22))]
    types = struct.pack("<IIQ33i", 9, 5, 33, *([3] * 3 + [1] * 6 + [3] * 24))
    more = {
        "tokenizer.ggml.tokens": [*texts, "<image_soft_token>"],
        "tokenizer.ggml.token_type": gguf_bytes.Raw(types),
    }
    path = save("m.gguf", gguf_bytes.gguf(metadata | more, tensors))
    sink = DirectorySink(tmp_path)
    imports = import_gguf([path], sink)
    text = sink.path(imports.blobs[-1].digest).read_text()
    assert '"<21>"' in text and "image_soft_token" not in text


def test_tensors_of_pictures_are_unknown_where_there_are_none(save: Save, tmp_path: Path) -> None:
    metadata, tensors = gguf_bytes.model("gemma3", unit=256)
    odd = gguf_bytes.tensor("v.blk.0.attn_q.weight", "F32", (4, 8), np.random.default_rng(1))
    with pytest.raises(InvalidGguf, match=r"1 tensors do not belong .* v\.blk\.0\.attn_q\.weight"):
        import_gguf([save("m.gguf", gguf_bytes.gguf(metadata, [*tensors, odd]))], DirectorySink(tmp_path))


def test_windows_of_too_few_layers_are_refused(save: Save, tmp_path: Path) -> None:
    flags = gguf_bytes.Raw(struct.pack("<IIQ?", 9, 7, 1, True))
    path = save("m.gguf", written(**{"attention.sliding_window_pattern": flags}))
    with pytest.raises(InvalidGguf, match="sliding_window_pattern has 1 entries for 2 layers"):
        import_gguf([path], DirectorySink(tmp_path))
