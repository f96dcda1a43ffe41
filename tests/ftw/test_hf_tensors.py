"""ftd.ftw.hf_tensors: slabs of any size are the whole, vectors become f32, against NumPy."""

from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest

from ftd.ftw import hf_tensors as module
from ftd.ftw.hf_tensors import Dense
from ftd.ftw.quantize import quantize
from ftd.ftw.safetensors import SafetensorsFile

VALUES = np.random.default_rng(0).normal(size=(7, 64)).astype(np.float32)


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """A tensor of seven rows and a vector, both on disk."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(checkpoint_bytes.safetensors({"m": VALUES, "v": VALUES[0].astype(np.float16)}))
    file = SafetensorsFile(path, "m.safetensors")
    yield {tensor.name: tensor for tensor in file.tensors}
    file.close()


@pytest.mark.parametrize("slab_bytes", [1, 600, 1 << 20])
@pytest.mark.parametrize("format", ["f32", "q8_0", "q4_0"])
def test_slabs_of_any_size_make_the_same_planes(
    stored: Any, format: str, slab_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLAB_BYTES", slab_bytes)
    planes = Dense(stored["m"], "m", format, (5, 64), first=2).planes()
    wanted = (VALUES[2:],) if format == "f32" else quantize(VALUES[2:], format).planes
    for slabs, plane in zip(planes, wanted, strict=True):
        np.testing.assert_array_equal(np.concatenate(list(slabs)), plane)


def test_vectors_become_f32_and_gemmas_get_one_added(stored: Any) -> None:
    half = VALUES[0].astype(np.float16).astype(np.float32)
    for plus_one in (False, True):
        (slabs,) = Dense(stored["v"], "v", "f32", (1, 64), vector=True, plus_one=plus_one).planes()
        np.testing.assert_array_equal(next(slabs)[0], half + np.float32(plus_one))
