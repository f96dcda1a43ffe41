"""Random-weight models of real shapes, for measurements: a ``Source`` that needs no files.

The weights of all layers are windows of one random array for each shape and format, so the host holds little
however large the model is; a device gets a copy of its own for each layer. With a ``Locality`` embeddings,
routers and head are made by it, and each layer's experts lie in memory of their own, as those of a file do.
"""

import mmap
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.engine import model_config
from ftd.engine.kv_pool import KvPool
from ftd.engine.loader import Loaded, Progress
from ftd.engine.locality import Locality
from ftd.engine.model_config import ModelConfig
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks
from ftd.engine.state_pool import StatePool
from ftd.engine.synthetic_shapes import SHAPES
from ftd.engine.weights import Weights
from ftd.ftw.format import BlobEntry, ExpertLayer, Experts, FtwConfig, Tokens
from ftd.ftw.quantize import quantize
from ftd.kernels.cpu import usable_cores
from ftd.kernels.quant import FORMATS, BankMatrix, ExpertBank, QuantMatrix

__all__ = ["SHAPES", "Synthetic", "SyntheticWeights"]

# Standard deviation of a weight: activations stay near 1 through norms, and logits are no ties
_SPREAD = 0.02
# Formats whose four low bits mean nothing at 8 (or at 0 and 16 on both sides of it): without 0 weights have
# no mean. With one, all outputs of a product move by the sum of its inputs, which grows from layer to layer
# until all tokens look the same to a router.
_MIDDLE_EIGHT = ("q4_0", "q5_0", "q6_k")
# Layer l's expert e is expert e + 5·l of the one bank that was made
_ROLL = 5
_RECORD_ALIGNMENT = 4096
_PLANE_ALIGNMENT = 64


class SyntheticWeights(Weights):
    """Makes each tensor that is asked for; has no optional ones. Norms are ones, routers and biases f32.

    locality: how local routing is; None: not at all. is_empty: weights are zeros that no memory holds, to
    learn what a family needs.
    """

    def __init__(
        self, format_name: str, seed: int, *, locality: Locality | None = None, is_empty: bool = False
    ) -> None:
        super().__init__({})
        self._is_empty = is_empty
        self._locality = None if is_empty else locality
        self._format = format_name
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[str, int], NDArray[Any]] = {}
        self._banks: dict[tuple[int, ...], ExpertBank] = {}
        self.own_banks: dict[int, ExpertBank] = {}
        self.sizes: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, int]] = {}

    def matrix(self, name: str, rows: int, columns: int) -> QuantMatrix:
        """Return tensor ``name`` [rows, columns] of random values."""
        is_router = name.endswith("mlp.gate.weight")
        format_name = "f32" if is_router or columns % FORMATS[self._format].block else self._format
        if self._locality is not None and name.endswith(_LOCAL):
            matrix = self._local(self._locality, name, rows, columns, format_name)
        elif rows == 1 and not is_router:
            # Of a recurrent layer's state, a token keeps exp(-softplus): a part of it
            value = -1.0 if name.endswith(".A") else 1.0
            matrix = QuantMatrix("f32", (rows, columns), (np.full((rows, columns), value, np.float32),))
        else:
            matrix = self._random(format_name, (rows, columns))
        self.sizes[name], self.shapes[name] = matrix.num_bytes, matrix.shape
        return matrix

    def bank(self, layer: int, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        """Return experts of random values; on the host all layers share one."""
        key = (num_experts, hidden_size, inner_size)
        if key not in self._banks:
            self._banks[key] = self._random_bank(*key)
        found = self._banks[key]
        if self._locality is not None:
            if layer not in self.own_banks:
                self.own_banks[layer] = _rolled(found, layer * _ROLL % num_experts)
            found = self.own_banks[layer]
        self.sizes[f"experts of layer {layer}"] = found.records.nbytes
        return ExpertBank(layer, found.records, found.matrices)

    def __contains__(self, name: str) -> bool:
        return False

    def unused(self) -> list[str]:
        """Return nothing: only what is asked for is made."""
        return []

    @property
    def num_bytes(self) -> int:
        """Bytes of all that was asked for."""
        return sum(self.sizes.values())

    def _local(self, locality: Locality, name: str, rows: int, columns: int, format_name: str) -> QuantMatrix:
        """Return an embedding, a head or a router; the ids of the first two that take no part come last."""
        if name.endswith("mlp.gate.weight"):
            return QuantMatrix("f32", (rows, columns), (locality.router(_layer_of(name), rows, columns),))
        is_head = name.startswith("lm_head")
        few = _in_format(locality.head(columns) if is_head else locality.embedding(columns), format_name)
        planes = []
        for plane in few.planes:
            whole = np.zeros((rows, plane.shape[1]), plane.dtype)
            if is_head:
                whole[: len(plane)] = plane[:rows]
            else:
                np.copyto(whole, np.resize(plane, whole.shape))
            planes.append(whole)
        return QuantMatrix(format_name, (rows, columns), tuple(planes))

    def _random(self, format_name: str, shape: tuple[int, int]) -> QuantMatrix:
        spec = FORMATS[format_name]
        planes = []
        for plane in spec.planes:
            rows, items = spec.plane_shape(plane, shape)
            planes.append(
                self._window(format_name, plane.name, plane.dtype, rows * items).reshape(rows, items)
            )
        return QuantMatrix(format_name, shape, tuple(planes))

    def _window(self, format_name: str, plane: str, dtype: str, count: int) -> NDArray[Any]:
        """Return ``count`` values of a plane that begin somewhere else each time."""
        if self._is_empty:
            return np.zeros(count, dtype)
        shift = int(self._rng.integers(0, 4096)) * _PLANE_ALIGNMENT
        key = (f"{format_name}.{plane}", np.dtype(dtype).itemsize)
        pool = self._pools.get(key)
        if pool is None or len(pool) < count + shift:
            pool = self._values(format_name, plane, dtype, max(count + 4096 * _PLANE_ALIGNMENT, 1 << 20))
            self._pools[key] = pool
        return pool[shift : shift + count]

    def _values(self, format_name: str, plane: str, dtype: str, count: int) -> NDArray[Any]:
        """Return random values of one plane, so that weights spread by ``_SPREAD``."""
        seed = self._rng.standard_normal(1 << 20).astype(np.float32) * np.float32(_SPREAD)
        if plane == "codes" and dtype in ("<f4", "<f2"):
            few = seed.astype(dtype)
        elif format_name == "bf16":
            few = (seed.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        elif format_name == "fp8_b128" and plane == "codes":
            few = self._rng.integers(0x20, 0x40, 1 << 20).astype(np.uint8) | np.uint8(0x80) * (seed > 0)
        elif plane == "codes" and format_name in _MIDDLE_EIGHT:
            low, high = self._rng.integers(1, 16, (2, 1 << 20)).astype(np.uint8)
            few = low | high << np.uint8(4)
        elif plane in ("codes", "high"):
            few = self._rng.integers(0, 256, 1 << 20).astype(np.uint8).view(dtype)
        else:
            few = self._scales(format_name, plane, dtype)
        return np.resize(few, count)

    def _scales(self, format_name: str, plane: str, dtype: str) -> NDArray[Any]:
        """Return a plane of scales near those that a real matrix of this spread would have."""
        step = _SPREAD / {"q8_0": 64.0, "q5_0": 9.0, "q5_1": 9.0, "q6_k": 18.0}.get(format_name, 4.6)
        exact = {
            ("mxfp4", "scales"): 127 - 7,
            ("nvfp4", "scales"): 0x38,
            ("nvfp4", "global"): _SPREAD / 3,
            ("fp8_b128", "scales"): _SPREAD,
        }
        middle = {"q4_1": 7.5, "q5_1": 15.5, "q4_k": 7.5, "q5_k": 15.5}.get(format_name, 0.0)
        by_plane = {"scales": step, "mins": -middle * step, "d": step / 32, "dmin": middle * step / 32}
        if format_name in ("q4_k", "q5_k", "q6_k") and plane in ("scales", "mins"):
            return np.full(1 << 10, 32, dtype)
        return np.full(1 << 10, exact.get((format_name, plane), by_plane.get(plane, 0.0)), dtype)

    def _random_bank(self, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        spec = FORMATS[self._format]
        shapes = {"gate_up": (2 * inner_size, hidden_size), "down": (hidden_size, inner_size)}
        offsets: dict[str, tuple[int, ...]] = {}
        size = 0
        for role, shape in shapes.items():
            places = []
            for plane in spec.planes:
                places.append(size)
                rows, items = spec.plane_shape(plane, shape)
                size += _up(rows * items * np.dtype(plane.dtype).itemsize, _PLANE_ALIGNMENT)
            offsets[role] = tuple(places)
        records = np.zeros((num_experts, _up(size, _RECORD_ALIGNMENT)), np.uint8)
        matrices = {r: BankMatrix(records, self._format, shapes[r], offsets[r]) for r in shapes}
        for matrix in matrices.values():
            for expert in range(0 if self._is_empty else num_experts):
                made = self._random(self._format, matrix.shape)
                for place, values in zip(matrix.expert(expert).planes, made.planes, strict=True):
                    np.copyto(place, values)
        return ExpertBank(0, records, matrices)


class Synthetic:
    """A model of ``SHAPES`` with weights of one quantisation format."""

    def __init__(
        self,
        shape: str,
        format_name: str,
        *,
        num_layers: int = 0,
        seed: int = 0,
        locality: Locality | None = None,
    ) -> None:
        architecture, hyperparameters = SHAPES[shape]
        if num_layers:
            hyperparameters = {**hyperparameters, "num_hidden_layers": num_layers}
            if "layer_types" in hyperparameters:
                hyperparameters["layer_types"] = hyperparameters["layer_types"][:num_layers]
        self._seed, self._format, self._locality = seed, format_name, locality
        # Of tens of GB: made once, however often the model is loaded
        self._own_banks: dict[int, ExpertBank] = {}
        counted = SyntheticWeights(format_name, seed, is_empty=True)
        model = model_config.make(architecture, hyperparameters)
        states = StatePool(model.recurrent, 1) if model.recurrent else None
        families.get(architecture)(Blocks(model, _Counter(), counted, KvPool(model, 1, 1, "fast"), states))
        expert_bytes = sum(size for name, size in counted.sizes.items() if name.startswith("experts"))
        sizes = [counted.num_bytes - expert_bytes, expert_bytes]
        self.config = FtwConfig(
            architecture=architecture,
            hyperparameters=hyperparameters,
            quantization=format_name.upper(),
            parameter_count=0,
            tokens=Tokens(),
            tensors=[],
            blobs=[
                BlobEntry(digest="", size=size, media_type="", chunk_bytes=1, chunks=[])
                for size in sizes
                if size
            ],
            experts=self._experts(model, expert_bytes),
        )

    def _experts(self, model: ModelConfig, expert_bytes: int) -> Experts | None:
        """Return what a file would say of the experts."""
        if model.experts is None:
            return None
        layers = [layer for layer, has_experts in enumerate(model.experts.layers) if has_experts]
        num_records = len(layers) * model.experts.num_experts
        return Experts(
            num_experts=model.experts.num_experts,
            record_bytes=expert_bytes // num_records,
            records_per_blob=num_records,
            blobs=[1],
            layers=[ExpertLayer(layer=layer, layout=0) for layer in layers],
            layouts=[],
        )

    def outline(self) -> SyntheticWeights:
        """Return weights that have shapes and no memory."""
        return SyntheticWeights(self._format, self._seed, is_empty=True)

    def read(self, progress: Progress) -> Loaded:
        """Return the weights, which are made when they are asked for."""
        started = time.monotonic_ns()
        weights = SyntheticWeights(self._format, self._seed, locality=self._locality)
        weights.own_banks = self._own_banks
        return Loaded(weights, 0, max(1, time.monotonic_ns() - started))


class _Handle:
    """A buffer of ``_Counter``."""

    def __init__(self, width: int) -> None:
        self.width = width


class _Counter:
    """A graph that records nothing: families ask the weights for what they need."""

    def buffer(self, width: int) -> _Handle:
        return _Handle(width)

    logit_buffer = buffer

    def __getattr__(self, name: str) -> Any:
        def ignore(*values: Iterable[Any], **options: Any) -> None:
            return None

        return ignore


_LOCAL = ("model.embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")


def _layer_of(name: str) -> int:
    """Return N of "model.layers.N.…"."""
    return int(name.split(".layers.")[1].split(".", maxsplit=1)[0])


def _in_format(rows: NDArray[np.float32], format_name: str) -> QuantMatrix:
    """Return ``rows`` in a format; bf16 by rounding to nearest."""
    if format_name in ("f32", "f16"):
        return QuantMatrix(format_name, rows.shape, (rows.astype("<f4" if format_name == "f32" else "<f2"),))
    if format_name == "bf16":
        bits = np.ascontiguousarray(rows).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return QuantMatrix("bf16", rows.shape, ((rounded >> np.uint32(16)).astype(np.uint16),))
    return quantize(rows, format_name)


def _rolled(bank: ExpertBank, shift: int) -> ExpertBank:
    """Return a copy of ``bank`` in memory of its own, expert e from expert e + ``shift``."""
    num_experts = len(bank.records)
    area = mmap.mmap(-1, bank.records.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    records = np.frombuffer(area, np.uint8).reshape(bank.records.shape)

    def copy(expert: int) -> None:
        np.copyto(records[expert], bank.records[(expert + shift) % num_experts])

    with ThreadPoolExecutor(len(usable_cores())) as threads:
        list(threads.map(copy, range(num_experts)))
    matrices = {
        role: BankMatrix(records, matrix.format, matrix.shape, matrix.offsets)
        for role, matrix in bank.matrices.items()
        if isinstance(matrix, BankMatrix)
    }
    return ExpertBank(bank.layer, records, matrices)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
