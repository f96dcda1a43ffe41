"""quantize_k: the compiled version against the definition bit for bit, both against llama-quantize."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.ftw import gguf_blocks
from ftd.kernels import quantize_k_ref
from ftd.kernels._quantize_k_cy import quantize_k
from ftd.kernels.quant import FORMATS

GOLDEN = Path(__file__).parents[1] / "golden" / "k_quants.npz"
KINDS = {"q4_k": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K"}


@pytest.fixture(params=[quantize_k_ref.quantize_k, quantize_k], ids=["reference", "cython"])
def quantizer(request: pytest.FixtureRequest) -> Callable[..., tuple[NDArray[Any], ...]]:
    """Each implementation."""
    return request.param


@pytest.mark.parametrize("format", KINDS)
def test_blocks_are_those_of_llama_quantize(
    format: str, quantizer: Callable[..., tuple[NDArray[Any], ...]]
) -> None:
    """golden/k_quants.npz: f32 values and what llama-quantize --pure (llama.cpp b11434) wrote for them."""
    with np.load(GOLDEN) as golden:
        planes = quantizer(golden["values"], format)
        for plane, ours in zip(FORMATS[format].planes, planes, strict=True):
            wanted = gguf_blocks.plane(KINDS[format], plane.name, golden[KINDS[format]])
            assert ours.dtype == np.dtype(plane.dtype)
            assert ours.shape == (len(wanted), plane.items * 256 // plane.values)
            assert ours.tobytes() == wanted.tobytes(), plane.name


@pytest.mark.parametrize("format", KINDS)
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 5), spread=st.integers(-12, 4))
def test_compiled_planes_are_those_of_the_definition(
    format: str, seed: int, blocks: int, spread: int
) -> None:
    random = np.random.default_rng(seed)
    values = (random.normal(size=(blocks, 256)) * 10.0**spread).astype(np.float32)
    parts = values.reshape(
        -1, 16
    )  # runs of zeros, of one value, of one sign, of whole numbers, of tiny numbers
    parts[random.random(len(parts)) < 0.1] = 0
    parts[random.random(len(parts)) < 0.1] = -1.5
    parts[random.random(len(parts)) < 0.1] *= np.float32(1e-25)
    parts[:2] = np.round(parts[:2])
    parts[2:4] = np.abs(parts[2:4])
    ours, wanted = quantize_k(values, format), quantize_k_ref.quantize_k(values, format)
    assert [plane.tobytes() for plane in ours] == [plane.tobytes() for plane in wanted]


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-40, 1e9, -65504.0 * 63 * 15])
def test_blocks_that_hurt(format: str, value: float) -> None:
    values = np.full((2, 256), value, np.float32)
    values[1, ::7] = 0
    with np.errstate(over="ignore"):
        wanted = quantize_k_ref.quantize_k(values, format)
    for ours, theirs in zip(quantize_k(values, format), wanted, strict=True):
        finite = np.isfinite(theirs).all() if theirs.dtype == np.float16 else np.isfinite(wanted[-1]).all()
        if finite:
            assert ours.tobytes() == theirs.tobytes()
        else:  # what f16 cannot hold is refused by the caller
            assert not np.isfinite(
                np.concatenate([p for p in quantize_k(values, format) if p.dtype == "f2"])
            ).all()


@pytest.mark.parametrize("format", KINDS)
def test_no_blocks(format: str) -> None:
    for ours, plane in zip(
        quantize_k(np.zeros((0, 256), np.float32), format), FORMATS[format].planes, strict=True
    ):
        assert ours.shape == (0, plane.items * 256 // plane.values)


@pytest.mark.parametrize(
    ("blocks", "format", "said"),
    [
        (np.zeros((2, 255), np.float32), "q4_k", r"blocks must be float32 \[M, 256\]"),
        (np.zeros((2, 256)), "q4_k", "blocks must be float32"),
        (np.zeros((2, 256), np.float32), "q4_0", "format must be q4_k, q5_k or q6_k: q4_0"),
    ],
)
def test_both_say_the_same_of_wrong_arguments(blocks: NDArray[Any], format: str, said: str) -> None:
    for function in (quantize_k, quantize_k_ref.quantize_k):
        with pytest.raises(ValueError, match=said):
            function(blocks, format)
