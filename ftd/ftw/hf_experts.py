"""The experts of a checkpoint, however its family stores them, as one tensor of one expert at a time.

    a tensor an expert   experts.E.{gate,up,down}_proj.weight or experts.E.{w1,w3,w2}.weight
    fused                gate_up [E, 2F, D] (gate rows, then up rows) and down [E, D, F]
    gpt-oss, floats      gate_up [E, D, 2F] (columns of gate and up alternate), down [E, F, D], biases [E, N]
    gpt-oss, mxfp4       blocks [E, N, K/32, 16] u8 · scales [E, N, K/32] u8; rows of gate and up alternate

An mxfp4 block of gpt-oss keeps values 2j and 2j + 1 in byte j; its codes are paired again as FTW wants them.
Memory holds one tensor of one expert and the planes of three records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.hf_packed import Packed
from ftd.ftw.hf_packed import find as find_packed
from ftd.ftw.hf_tensors import check, matrix, rows
from ftd.ftw.quantize import as_f32
from ftd.ftw.recipes import Recipe, target
from ftd.ftw.safetensors import StoredTensor
from ftd.kernels.quant import QuantMatrix

Tensors = Mapping[str, StoredTensor]
_EACH = (
    ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight", "mlp.experts.{}.down_proj.weight"),
    (
        "block_sparse_moe.experts.{}.w1.weight",
        "block_sparse_moe.experts.{}.w3.weight",
        "block_sparse_moe.experts.{}.w2.weight",
    ),
)
_FUSED = (
    ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
)
_BLOCK, _BLOCK_BYTES = 32, 16


@dataclass(frozen=True, slots=True)
class Share:
    """What each expert of a layer has of one role, and how to read that of one expert."""

    role: str
    format: str
    shape: tuple[int, int]
    sources: tuple[StoredTensor, ...]
    read: Callable[[int], QuantMatrix]


def plan_layer(
    tensors: Tensors, model_type: str, layer: int, size: dict[str, int], recipe: Recipe | None
) -> list[Share]:
    """Return the shares of one layer; raise InvalidCheckpoint for a tensor missing or of another shape."""
    prefix = f"model.layers.{layer}."
    if model_type == "gpt_oss":
        if f"{prefix}mlp.experts.gate_up_proj_blocks" in tensors:
            shares = _mxfp4(tensors, f"{prefix}mlp.experts.", size)
        else:
            shares = _transposed(tensors, f"{prefix}mlp.experts.", size, recipe)
        return [*shares, *_biases(tensors, f"{prefix}mlp.experts.", size)]
    for gate_up, down in _FUSED:
        if prefix + gate_up in tensors:
            return _fused(tensors, prefix + gate_up, prefix + down, size, recipe)
    for names in _EACH:
        first = prefix + names[0].format(0)
        if first in tensors or f"{first}_packed" in tensors:
            return _each(tensors, [prefix + name for name in names], size, recipe)
    raise InvalidCheckpoint(
        f"layer {layer} has no experts: tensor {prefix}{_EACH[0][0].format(0)} is missing"
    )


def read(share: Share, expert: int) -> QuantMatrix:
    """Read what one expert has of a share."""
    return share.read(expert)


def source_bytes(layer: Sequence[Share]) -> int:
    """Return the bytes of all tensors of a layer's experts."""
    sources = {source.name: source.num_bytes for share in layer for source in share.sources}
    return sum(sources.values())


def _find(tensors: Tensors, name: str) -> StoredTensor:
    if name not in tensors:
        raise InvalidCheckpoint(f"tensor {name} is missing")
    return tensors[name]


def _roles(size: dict[str, int]) -> dict[str, tuple[int, int]]:
    inner, hidden = size["F"], size["D"]
    return {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}


def _each(tensors: Tensors, names: Sequence[str], size: dict[str, int], recipe: Recipe | None) -> list[Share]:
    shares = []
    for (role, shape), name in zip(_roles(size).items(), names, strict=True):
        if find_packed(tensors, name.format(0), shape) is not None:
            shares.append(_each_packed(tensors, role, name, shape, size["E"], recipe))
            continue
        sources = tuple(_find(tensors, name.format(expert)) for expert in range(size["E"]))
        formats = {check(source, shape) for source in sources}
        if len(formats) != 1:
            raise InvalidCheckpoint(
                f"experts differ in dtype: {name.format('*')} has {' '.join(sorted(formats))}"
            )
        format = target(role, formats.pop(), shape[1], recipe)

        def read(
            expert: int,
            sources: tuple[StoredTensor, ...] = sources,
            shape: tuple[int, int] = shape,
            format: str = format,
        ) -> QuantMatrix:
            return matrix(rows(sources[expert], 0, *shape), format)

        shares.append(Share(role, format, shape, sources, read))
    return shares


def _each_packed(
    tensors: Tensors, role: str, name: str, shape: tuple[int, int], experts: int, recipe: Recipe | None
) -> Share:
    """Return the share of experts that the checkpoint keeps quantised, each by itself."""
    found: list[Packed] = []
    for expert in range(experts):
        packed = find_packed(tensors, name.format(expert), shape)
        if packed is None or (found and packed.format != found[0].format):
            raise InvalidCheckpoint(
                f"tensor {name.format(expert)} is missing or not quantised like the others"
            )
        found.append(packed)
    if recipe is not None:
        raise Unsupported(
            f"a model that is quantised already keeps its quantization: {found[0].name} is {found[0].format}",
            "create from a checkpoint of f32, f16 or bf16",
        )
    sources = tuple(source for packed in found for source in packed.sources)
    return Share(role, found[0].format, shape, sources, lambda expert: found[expert].matrix())


def _fused(
    tensors: Tensors, gate_up: str, down: str, size: dict[str, int], recipe: Recipe | None
) -> list[Share]:
    experts, hidden, inner = size["E"], size["D"], size["F"]
    halves, whole = _find(tensors, gate_up), _find(tensors, down)
    check(halves, (experts, 2 * inner, hidden))
    check(whole, (experts, hidden, inner))
    places = {"gate": (halves, 2 * inner, 0), "up": (halves, 2 * inner, inner), "down": (whole, hidden, 0)}
    shares = []
    for role, shape in _roles(size).items():
        source, stride, start = places[role]
        format = target(role, check(source, source.shape), shape[1], recipe)

        def read(
            expert: int,
            source: StoredTensor = source,
            stride: int = stride,
            start: int = start,
            shape: tuple[int, int] = shape,
            format: str = format,
        ) -> QuantMatrix:
            return matrix(rows(source, expert * stride + start, *shape), format)

        shares.append(Share(role, format, shape, (source,), read))
    return shares


# gate, up and down of gpt-oss: which rows of the transposed tensor belong to the role
_ALTERNATE = {"gate": slice(0, None, 2), "up": slice(1, None, 2), "down": slice(None)}


def _transposed(tensors: Tensors, prefix: str, size: dict[str, int], recipe: Recipe | None) -> list[Share]:
    experts, hidden, inner = size["E"], size["D"], size["F"]
    shares = []
    for role, shape in _roles(size).items():
        source = _find(tensors, prefix + ("down_proj" if role == "down" else "gate_up_proj"))
        stored = (inner, hidden) if role == "down" else (hidden, 2 * inner)
        format = target(role, check(source, (experts, *stored)), shape[1], recipe)

        def read(
            expert: int,
            source: StoredTensor = source,
            stored: tuple[int, int] = stored,
            part: slice = _ALTERNATE[role],
            format: str = format,
        ) -> QuantMatrix:
            values = rows(source, expert * stored[0], *stored)
            return matrix(np.ascontiguousarray(values.T[part]), format)

        shares.append(Share(role, format, shape, (source,), read))
    return shares


def _biases(tensors: Tensors, prefix: str, size: dict[str, int]) -> list[Share]:
    shares = []
    for role, (length, _) in _roles(size).items():
        stored = length if role == "down" else 2 * length
        source = _find(tensors, prefix + ("down_proj_bias" if role == "down" else "gate_up_proj_bias"))
        check(source, (size["E"], stored))

        def read(
            expert: int, source: StoredTensor = source, stored: int = stored, part: slice = _ALTERNATE[role]
        ) -> QuantMatrix:
            values = np.ascontiguousarray(as_f32(rows(source, expert, 1, stored))[:, part])
            return matrix(values, "f32")

        shares.append(Share(f"{role}_bias", "f32", (1, length), (source,), read))
    return shares


def _mxfp4(tensors: Tensors, prefix: str, size: dict[str, int]) -> list[Share]:
    shares = []
    for role, shape in _roles(size).items():
        name = prefix + ("down_proj" if role == "down" else "gate_up_proj")
        blocks, scales = _find(tensors, f"{name}_blocks"), _find(tensors, f"{name}_scales")
        num_rows = shape[0] if role == "down" else 2 * shape[0]
        num_blocks = shape[1] // _BLOCK
        wanted = (size["E"], num_rows, num_blocks)
        for tensor, tensor_shape in ((blocks, (*wanted, _BLOCK_BYTES)), (scales, wanted)):
            if tensor.shape != tensor_shape or tensor.dtype != "U8" or shape[1] % _BLOCK:
                raise InvalidCheckpoint(
                    f"tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)} "
                    f"instead of U8 {list(tensor_shape)}"
                )

        def read(
            expert: int,
            blocks: StoredTensor = blocks,
            scales: StoredTensor = scales,
            num_rows: int = num_rows,
            shape: tuple[int, int] = shape,
            part: slice = _ALTERNATE[role],
        ) -> QuantMatrix:
            num_bytes = num_rows * shape[1] // 2
            pairs = blocks.read(expert * num_bytes, num_bytes).reshape(num_rows, -1, _BLOCK_BYTES)[part]
            values = np.stack((pairs & 0x0F, pairs >> 4), axis=3).reshape(*pairs.shape[:2], 2, _BLOCK_BYTES)
            codes = (values[:, :, 0] | values[:, :, 1] << 4).reshape(shape[0], -1)
            exponents = scales.read(expert * num_bytes // _BLOCK_BYTES, num_bytes // _BLOCK_BYTES)
            exponents = np.ascontiguousarray(exponents.reshape(num_rows, -1)[part])
            return QuantMatrix("mxfp4", shape, (np.ascontiguousarray(codes), exponents))

        shares.append(Share(role, "mxfp4", shape, (blocks, scales), read))
    return shares
