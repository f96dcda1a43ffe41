"""Matrices that a checkpoint keeps quantised, as FTW planes: the same codes and scales, nothing requantised.

    fp8       X.weight e4m3 [N, K] · X.weight_scale_inv [N/128, K/128] float            e4m3(c) · s
    nvfp4     X.weight u8 [N, K/2] · X.weight_scale e4m3 [N, K/16] · X.weight_scale_2 f32    e2m1(c) · s · g
              X.weight_packed u8   · X.weight_scale e4m3 · X.weight_global_scale f32         e2m1(c) · s / g
    mxfp4     X.weight_packed u8   · X.weight_scale u8 [N, K/32]                        e2m1(c) · 2^(s - 127)

Byte j of a packed row holds values 2j and 2j + 1; FTW pairs values 16 apart, so codes are paired again.
Scales of bf16 become f32 exactly; only a global scale that divides becomes a rounded reciprocal. What scales
the activations (input_scale …) is left out: ftd computes with better ones.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.fused_rows import Run
from ftd.ftw.quantize import as_f32
from ftd.ftw.safetensors import StoredTensor
from ftd.kernels.quant import QuantMatrix

SLAB_BYTES = 4 << 20
FP8_BLOCK = 128
IGNORED = re.compile(r"\.(?:input_scale|input_global_scale|k_scale|v_scale|q_scale)$")
METHODS = "fp8 with blocks of 128, modelopt nvfp4, compressed-tensors nvfp4 and mxfp4"
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

Tensors = Mapping[str, StoredTensor]
Slabs = Callable[[], Iterator[NDArray[np.generic]]]
Bytes = Callable[[], Iterator[NDArray[np.uint8]]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised ``[N, K]`` matrix: what it becomes, where it comes from, its planes as slabs of rows."""

    name: str
    format: str
    shape: tuple[int, int]
    sources: tuple[StoredTensor, ...]
    slabs: tuple[Slabs, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes that are read."""
        return sum(source.num_bytes for source in self.sources)

    def planes(self) -> list[Iterator[NDArray[np.generic]]]:
        """Return the planes, each as slabs of rows."""
        return [plane() for plane in self.slabs]

    def matrix(self) -> QuantMatrix:
        """Return the whole matrix."""
        planes = tuple(np.concatenate(list(plane())) for plane in self.slabs)
        return QuantMatrix(self.format, self.shape, planes)


def check_config(config: Mapping[str, object], model_type: str) -> None:
    """Raise Unsupported if config.json says that weights are quantised in a way that ftd cannot read."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return
    if not isinstance(quantization, dict):
        raise InvalidCheckpoint(f"quantization_config of config.json is no object: {quantization!r:.50}")
    method = quantization.get("quant_method")
    what = {
        "fp8": quantization.get("weight_block_size"),
        "modelopt": quantization.get("quant_algo"),
        "compressed-tensors": quantization.get("format"),
        "mxfp4": model_type,
    }.get(method if isinstance(method, str) else "")
    if what not in (
        [FP8_BLOCK, FP8_BLOCK],
        "NVFP4",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "gpt_oss",
    ):
        raise Unsupported(
            f"safetensors quantised by {method!r:.50} ({what!r:.50}) are not supported",
            f"use the unquantised model, or one of {METHODS}",
        )


def find(tensors: Tensors, name: str, shape: tuple[int, int]) -> Packed | None:
    """Return the quantised matrix whose weight is called ``name`` (…weight), None if it is none.

    Raises InvalidCheckpoint if a tensor that belongs to it is missing or has another shape.
    """
    weight, packed = tensors.get(name), tensors.get(f"{name}_packed")
    if packed is not None:
        return _fp4(tensors, packed, name, shape)
    if weight is not None and weight.dtype == "U8":
        return _fp4(tensors, weight, name, shape)
    if weight is not None and weight.dtype == "F8_E4M3":
        return fp8(name, weight, _find(tensors, f"{name}_scale_inv"), shape)
    return None


def fp8(name: str, weight: StoredTensor, scales: StoredTensor, shape: tuple[int, int]) -> Packed:
    """Return a matrix of e4m3 with a float scale for every 128 x 128 block."""
    blocks = (-(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK))
    _check(weight, shape, ("F8_E4M3",))
    _check(scales, blocks, tuple(_FLOATS))

    def read_scales() -> Iterator[NDArray[np.generic]]:
        values = scales.read(0, scales.num_bytes).view(_FLOATS[scales.dtype]).reshape(blocks)
        yield np.ascontiguousarray(as_f32(values))

    return Packed(name, "fp8_b128", shape, (weight, scales), (_bytes(weight, shape), read_scales))


def _fp4(tensors: Tensors, codes: StoredTensor, name: str, shape: tuple[int, int]) -> Packed:
    rows, columns = shape
    scales = _find(tensors, f"{name}_scale")
    format, block = ("mxfp4", 32) if scales.dtype in ("U8", "F8_E8M0") else ("nvfp4", 16)
    if columns % block:
        raise InvalidCheckpoint(f"tensor {codes.name} has rows that are no blocks of {block}: {columns}")
    _check(codes, (rows, columns // 2), ("U8",))
    _check(scales, (rows, columns // block), ("F8_E4M3", "U8", "F8_E8M0"))

    def read_codes() -> Iterator[NDArray[np.generic]]:
        yield from (paired(slab) for slab in _bytes(codes, (rows, columns // 2))())

    planes = (read_codes, _bytes(scales, (rows, columns // block)))
    if format == "mxfp4":
        return Packed(name, format, shape, (codes, scales), planes)
    divides = f"{name}_global_scale" in tensors
    scale = _find(tensors, f"{name}_global_scale" if divides else f"{name}_scale_2")
    _check(scale, (1,) if scale.shape else (), ("F32",))
    value = scale.read(0, 4).view("<f4")
    if not np.isfinite(value).all() or not value.all():
        raise InvalidCheckpoint(f"tensor {scale.name} is no scale: {value[0]}")
    factor = (np.float32(1) / value if divides else value).reshape(1, 1)
    return Packed(name, format, shape, (codes, scales, scale), (*planes, lambda: iter([factor])))


def take(packed: Packed, runs: Iterable[Run]) -> Packed:
    """Return the matrix that ``runs`` of rows of a fused one are; Unsupported if they cut a block of fp8."""
    runs = tuple(runs)

    def gather(slabs: Slabs, unit: int) -> Slabs:
        index = np.concatenate([np.arange(first // unit, (first + count) // unit) for first, count in runs])
        return lambda: iter([np.concatenate(list(slabs()))[index]])

    units = (1, FP8_BLOCK if packed.format == "fp8_b128" else 1)
    if any(row % units[1] for run in runs for row in run):
        raise Unsupported(
            f"tensor {packed.sources[0].name} holds matrices that share blocks of {FP8_BLOCK} rows",
            "use the unquantised model",
        )
    parts = tuple(gather(slabs, unit) for slabs, unit in zip(packed.slabs, units, strict=False))
    rows = sum(count for _, count in runs)
    return replace(packed, shape=(rows, packed.shape[1]), slabs=(*parts, *packed.slabs[len(units) :]))


def paired(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return rows of codes, two neighbours in a byte, with values of both halves of a block in a byte.

    Blocks have 32 values; 16 that are left at the end of a row are a block of their own.
    """
    rows, row_bytes = codes.shape
    whole = row_bytes // 16 * 16
    parts = [_halves(codes[:, :whole].reshape(rows, -1, 16)).reshape(rows, whole)]
    if whole < row_bytes:
        parts.append(_halves(codes[:, None, whole:])[:, 0])
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _halves(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    size = blocks.shape[2]
    values = np.stack((blocks & np.uint8(0x0F), blocks >> np.uint8(4)), axis=3).reshape(
        *blocks.shape[:2], 2 * size
    )
    pairs: NDArray[np.uint8] = values[:, :, :size] | values[:, :, size:] << np.uint8(4)
    return pairs


def _bytes(tensor: StoredTensor, shape: tuple[int, int]) -> Bytes:
    rows, row_bytes = shape
    step = max(SLAB_BYTES // row_bytes, 1)

    def read() -> Iterator[NDArray[np.uint8]]:
        for first in range(0, rows, step):
            count = min(step, rows - first)
            yield tensor.read(first * row_bytes, count * row_bytes).reshape(count, row_bytes)

    return read


def _find(tensors: Tensors, name: str) -> StoredTensor:
    if name not in tensors:
        raise InvalidCheckpoint(f"tensor {name} is missing")
    return tensors[name]


def _check(tensor: StoredTensor, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    if tensor.shape != shape or tensor.dtype not in dtypes:
        raise InvalidCheckpoint(
            f"tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)} "
            f"instead of {dtypes[0]} {list(shape)}"
        )
