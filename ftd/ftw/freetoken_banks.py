"""The layouts of expert banks in FreeToken's FTW version 1, as one tensor of one expert at a time.

    bf16          gate_up [E, 2F, D] · down [E, D, F]: gate rows, then up rows
    fp8_block     the same in e4m3 · gate_up_scale [E, 2F/128, ≥ D/128] floats · down_scale
    nvfp4         gate_up_packed u8 [E, 2F, D/2] · gate_up_scale e4m3 [E, 2F, D/16] · gate_up_global f16
                  [E, 2F], the same in all rows of gate, and of up · down_packed, down_scale, down_global
    ds_fp4        gate_up_packed u8 [E, 2F, D/2] · gate_up_scale e8m0 [E, 2F, D/32] · down_packed, down_scale
    mxfp4_triton  gate_up_blocks u8 [E, D/2, 2F] · gate_up_scales u8 [E, D/32, 2F] · gate_up_bias [E, 2F]:
                  gate and up alternate, and the last two dimensions are swapped · down_blocks, down_scales,
                  down_bias

Other layouts are cut for the kernels of one kind of GPU and are refused.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.freetoken import FreeTokenCheckpoint
from ftd.ftw.hf_experts import Share
from ftd.ftw.hf_packed import paired
from ftd.ftw.hf_tensors import FLOATS, matrix
from ftd.ftw.quantize import as_f32
from ftd.ftw.recipes import Recipe, target
from ftd.ftw.safetensors import StoredTensor
from ftd.kernels.quant import QuantMatrix

FP8_BLOCK, NVFP4_BLOCK, MXFP4_BLOCK = 128, 16, 32
Bytes = NDArray[np.uint8]
_SOURCE = {"gate": "gate_up", "up": "gate_up", "down": "down"}


class _Layer:
    """The banks of one layer: typed and bounded look-ups."""

    def __init__(self, checkpoint: FreeTokenCheckpoint, layer: int, size: dict[str, int]) -> None:
        self.experts, self._checkpoint, self._layer = size["E"], checkpoint, layer
        inner, hidden = size["F"], size["D"]
        self.shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}

    def stored_rows(self, role: str) -> int:
        """Rows of the bank that holds ``role``."""
        return self.shapes[role][0] * (1 if role == "down" else 2)

    def padded(self, name: str, wanted: int) -> int:
        """Return the length of the rows of a bank, which is ``wanted`` or padded to 16 bytes more."""
        bank = self._checkpoint.banks.get((name, self._layer))
        width = bank.shape[-1] if bank is not None and bank.shape else wanted
        return width if wanted <= width < wanted + 16 else wanted

    def bank(self, name: str, shape: tuple[int, ...], *dtypes: str) -> StoredTensor:
        """Return a bank [E, *shape]; raise InvalidCheckpoint if it is missing or another."""
        bank = self._checkpoint.banks.get((name, self._layer))
        if bank is None:
            raise InvalidCheckpoint(f"bank {name}#L{self._layer:05} is missing")
        wanted = (self.experts, *shape)
        if bank.shape != wanted or bank.dtype not in dtypes:
            raise InvalidCheckpoint(
                f"bank {bank.name} is {bank.dtype} {list(bank.shape)} instead of {dtypes[0]} {list(wanted)}"
            )
        return bank


def plan_layer(
    checkpoint: FreeTokenCheckpoint, layer: int, size: dict[str, int], recipe: Recipe | None
) -> list[Share]:
    """Return the shares of the ``layer``-th layer with experts; InvalidCheckpoint or Unsupported by name."""
    kind = checkpoint.quant_format
    if kind not in _PLANS:
        raise Unsupported(
            f"experts are laid out for a kernel that ftd does not have: {kind!r:.40}",
            f"convert again to one of {' '.join(_PLANS)}",
        )
    if recipe is not None and kind != "bf16":
        raise Unsupported(
            f"a model that is quantised already keeps its quantization: its experts are {kind}",
            "create from a checkpoint of f32, f16 or bf16",
        )
    banks = _Layer(checkpoint, layer, size)
    if kind == "bf16":
        return [_floats(banks, role, recipe) for role in _SOURCE]
    shares = [_PLANS[kind](banks, role) for role in _SOURCE]
    return shares + ([_bias(banks, role) for role in _SOURCE] if kind == "mxfp4_triton" else [])


def _of_expert(bank: StoredTensor, expert: int, dtype: str = "u1") -> NDArray[np.generic]:
    """Read the share of one expert."""
    num_bytes = bank.num_bytes // bank.shape[0]
    return bank.read(expert * num_bytes, num_bytes).view(dtype).reshape(bank.shape[1:])


def _half(role: str, rows: int) -> slice:
    """Return which of the rows of a bank belong to ``role``, whose matrix has ``rows``."""
    return slice(rows, 2 * rows) if role == "up" else slice(0, rows)


def _floats(banks: _Layer, role: str, recipe: Recipe | None) -> Share:
    rows, columns = banks.shapes[role]
    bank = banks.bank(_SOURCE[role], (banks.stored_rows(role), columns), *FLOATS)
    format = target(role, FLOATS[bank.dtype][0], columns, recipe)

    def read(expert: int) -> QuantMatrix:
        values = _of_expert(bank, expert, FLOATS[bank.dtype][1])[_half(role, rows)]
        return matrix(np.ascontiguousarray(values), format)

    return Share(role, format, (rows, columns), (bank,), read)


def _fp8(banks: _Layer, role: str) -> Share:
    rows, columns = banks.shapes[role]
    if rows % FP8_BLOCK or columns % FP8_BLOCK:
        raise Unsupported(f"fp8 experts of [{rows}, {columns}] are no blocks of {FP8_BLOCK}")
    codes = banks.bank(_SOURCE[role], (banks.stored_rows(role), columns), "F8_E4M3")
    name = f"{_SOURCE[role]}_scale"
    padded = banks.padded(name, columns // FP8_BLOCK)
    scales = banks.bank(name, (banks.stored_rows(role) // FP8_BLOCK, padded), *FLOATS)

    def read(expert: int) -> QuantMatrix:
        values = _of_expert(scales, expert, FLOATS[scales.dtype][1])[_half(role, rows // FP8_BLOCK)]
        planes = (
            np.ascontiguousarray(_of_expert(codes, expert)[_half(role, rows)]),
            np.ascontiguousarray(as_f32(values[:, : columns // FP8_BLOCK])),
        )
        return QuantMatrix("fp8_b128", (rows, columns), planes)

    return Share(role, "fp8_b128", (rows, columns), (codes, scales), read)


def _nvfp4(banks: _Layer, role: str) -> Share:
    rows, columns = banks.shapes[role]
    source, stored = _SOURCE[role], banks.stored_rows(role)
    codes = banks.bank(f"{source}_packed", (stored, columns // 2), "U8")
    scales = banks.bank(f"{source}_scale", (stored, columns // NVFP4_BLOCK), "F8_E4M3")
    factors = banks.bank(f"{source}_global", (stored,), "F16", "F32")
    if columns % NVFP4_BLOCK:
        raise InvalidCheckpoint(f"bank {codes.name} has rows that are no blocks of {NVFP4_BLOCK}: {columns}")

    def read(expert: int) -> QuantMatrix:
        part = _half(role, rows)
        factor = as_f32(_of_expert(factors, expert, FLOATS[factors.dtype][1])[part])
        if not (factor == factor[0]).all() or not np.isfinite(factor[0]):
            raise InvalidCheckpoint(
                f"bank {factors.name} differs between the rows of {role} of expert {expert}"
            )
        planes = (
            paired(_bytes(codes, expert)[part]),
            np.ascontiguousarray(_of_expert(scales, expert)[part]),
            factor[:1].reshape(1, 1),
        )
        return QuantMatrix("nvfp4", (rows, columns), planes)

    return Share(role, "nvfp4", (rows, columns), (codes, scales, factors), read)


def _mxfp4(banks: _Layer, role: str, transposed: bool, names: Sequence[str]) -> Share:
    rows, columns = banks.shapes[role]
    source, stored = _SOURCE[role], banks.stored_rows(role)
    if columns % MXFP4_BLOCK:
        raise InvalidCheckpoint(f"{role} of experts has rows that are no blocks of {MXFP4_BLOCK}: {columns}")
    shapes = [(stored, columns // 2), (stored, columns // MXFP4_BLOCK)]
    codes, scales = (
        banks.bank(f"{source}_{name}", shape[::-1] if transposed else shape, "U8", "F8_E8M0")
        for name, shape in zip(names, shapes, strict=True)
    )
    part = _half(role, rows)
    if transposed and role != "down":
        part = slice(0 if role == "gate" else 1, None, 2)

    def read(expert: int) -> QuantMatrix:
        planes = []
        for bank in (codes, scales):
            values = _bytes(bank, expert)
            planes.append(np.ascontiguousarray((values.T if transposed else values)[part]))
        return QuantMatrix("mxfp4", (rows, columns), (paired(planes[0]), planes[1]))

    return Share(role, "mxfp4", (rows, columns), (codes, scales), read)


def _bytes(bank: StoredTensor, expert: int) -> Bytes:
    num_bytes = bank.num_bytes // bank.shape[0]
    return bank.read(expert * num_bytes, num_bytes).reshape(bank.shape[1:])


def _bias(banks: _Layer, role: str) -> Share:
    rows = banks.shapes[role][0]
    bank = banks.bank(f"{_SOURCE[role]}_bias", (banks.stored_rows(role),), *FLOATS)
    part = slice(None) if role == "down" else slice(0 if role == "gate" else 1, None, 2)

    def read(expert: int) -> QuantMatrix:
        values = as_f32(_of_expert(bank, expert, FLOATS[bank.dtype][1])[part])
        return matrix(np.ascontiguousarray(values).reshape(1, rows), "f32")

    return Share(f"{role}_bias", "f32", (1, rows), (bank,), read)


_PLANS: dict[str, Callable[[_Layer, str], Share]] = {
    "bf16": partial(_floats, recipe=None),
    "fp8_block": _fp8,
    "nvfp4": _nvfp4,
    "ds_fp4": partial(_mxfp4, transposed=False, names=("packed", "scale")),
    "mxfp4_triton": partial(_mxfp4, transposed=True, names=("blocks", "scales")),
}
