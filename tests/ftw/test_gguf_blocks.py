"""Planes of every block type against the dequantisation of the ``gguf`` package, bit for bit."""

import gguf_bytes
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.errors import Unsupported
from ftd.ftw.gguf_blocks import FORMAT_BY_TYPE, format_of, plane
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS, QuantMatrix


def as_matrix(kind: str, rows: np.ndarray, columns: int) -> QuantMatrix:
    spec = FORMATS[FORMAT_BY_TYPE[kind]]
    shape = (len(rows), columns)
    blocks = rows.reshape(-1, gguf_bytes.BLOCKS[kind][2])
    planes = [
        plane(kind, entry.name, blocks).reshape(-1).view(entry.dtype).reshape(spec.plane_shape(entry, shape))
        for entry in spec.planes
    ]
    return QuantMatrix(spec.name, shape, tuple(planes))


@pytest.mark.parametrize("kind", FORMAT_BY_TYPE)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 3), blocks=st.integers(1, 3))
@settings(max_examples=examples(15))
def test_values_are_those_of_the_gguf_package(kind: str, seed: int, rows: int, blocks: int) -> None:
    columns = blocks * max(gguf_bytes.BLOCKS[kind][1], 2)
    raw = gguf_bytes.blocks(kind, rows, columns, np.random.default_rng(seed))
    theirs = gguf_bytes.values(kind, raw)
    ours = dequantize(as_matrix(kind, raw, columns))
    assert np.array_equal(ours.view(np.uint32), theirs.reshape(ours.shape).view(np.uint32))


@pytest.mark.parametrize("kind", FORMAT_BY_TYPE)
def test_planes_have_all_the_bytes_of_the_blocks(kind: str) -> None:
    _, values, size, _ = gguf_bytes.BLOCKS[kind]
    num_bytes = FORMATS[FORMAT_BY_TYPE[kind]].num_bytes((1, values))
    packed_scales = {"Q4_K": 4, "Q5_K": 4}  # twelve bytes of 6-bit numbers become sixteen of 8 bits
    assert num_bytes == size + packed_scales.get(kind, 0)


def test_a_type_that_cannot_run_is_refused_with_the_list() -> None:
    with pytest.raises(Unsupported, match="IQ2_XS") as caught:
        format_of("IQ2_XS", "blk.0.attn_q.weight")
    assert "Q4_K" in str(caught.value.hint)
