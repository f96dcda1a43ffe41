"""What kernels know of formats of codes, against the planes that define them and codes that are worth 0."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="the kernels' functions are its own")

from ftd.kernels import formats_triton
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS, QuantMatrix

CODES = sorted(set(FORMATS) - {"f32", "f16", "bf16", "fp8_b128"})


@pytest.mark.parametrize("name", CODES)
def test_planes_are_where_kernels_look_for_them(name: str) -> None:
    planes = [plane.name for plane in FORMATS[name].planes]
    assert planes[formats_triton.scale_plane(name)] == "scales"
    assert formats_triton.has_high_bits(name) == ("high" in planes)
    assert formats_triton.has_least(name) == ("mins" in planes)
    if formats_triton.has_least(name):
        assert planes[formats_triton.scale_plane(name) + 1] == "mins"
    codes, scales = (FORMATS[name].planes[place] for place in (0, formats_triton.scale_plane(name)))
    _, items = FORMATS[name].plane_shape(codes, (1, 512))
    assert 4 * formats_triton.num_words(name, 512) == items * np.dtype(codes.dtype).itemsize
    _, blocks = FORMATS[name].plane_shape(scales, (1, 512))
    assert formats_triton.has_halves(name) == (blocks == 512 // 16)
    kinds = [formats_triton.is_fp4(name), formats_triton.is_four_bits(name)]
    assert kinds.count(True) + formats_triton.has_high_bits(name) + (name == "q8_0") == 1


@pytest.mark.parametrize("name", sorted(set(CODES) - {"mxfp4", "nvfp4"}))
def test_the_offset_is_worth_0(name: str) -> None:
    offset = formats_triton.code_offset(name)
    planes = []
    for plane in FORMATS[name].planes:
        value = {"codes": offset % 16 * 17, "high": 0xFF * (offset > 15), "mins": 0, "dmin": 0}.get(
            plane.name, 1
        )
        if name == "q8_0" and plane.name == "codes":
            value = np.uint8(offset ^ 0x80)  # a byte's highest bit is turned
        if name == "q6_k" and plane.name == "high":
            value = 0xAA  # 32 is two in each two bits
        shape = FORMATS[name].plane_shape(plane, (1, 512))
        planes.append(np.full(shape, value).astype(plane.dtype))
    assert not dequantize(QuantMatrix(name, (1, 512), tuple(planes))).any()
