"""FreeToken's checkpoints (its FTW version 1: ``freetoken_weight.json`` and ``*.ftw``) as any checkpoint.

    freetoken_weight.json   {"format", "version", "align", "tensors": […], "shards": […], "quant_format", …}
    tensors                 {"name", "kind", "dtype", "shape", "global_off", "nbytes"}
    shards                  {"file", "global_off", "nbytes"}: pieces of the one region that tensors lie in

Tensors of kind ``weight`` have the names of Hugging Face, but for q, k and v in one (``qkv_proj``) and for
gate and up in one (``gate_up_proj``): their rows are given back their names. Tensors of kind ``experts_bank``
hold one weight of all experts, of one layer (``NAME#L00003``) or of all layers in turn (``NAME``);
``ftd.ftw.freetoken_banks`` knows their layouts. Layers are counted over those with experts.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.safetensors import ITEM_BYTES, MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS, StoredTensor

INDEX = "freetoken_weight.json"
VERSION, ALIGNMENT = 1, 4096
MAX_SHARDS = 1 << 14
DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
}
_BANK = re.compile(r"(?P<name>[a-z_]{1,40})#L(?P<layer>\d{5})", re.ASCII)
_FUSED = re.compile(r"(?P<stem>.*)\.(?P<what>qkv|gate_up)_proj\.(?P<kind>weight|bias|weight_scale_inv)")


class _Entry(msgspec.Struct):
    name: str
    kind: str
    dtype: str
    shape: list[int]
    global_off: int
    nbytes: int


class _Shard(msgspec.Struct):
    file: str
    global_off: int
    nbytes: int


class _Index(msgspec.Struct):
    format: str
    version: int
    tensors: list[_Entry]
    shards: list[_Shard]
    quant_format: str | None = None


class _Region:
    """The bytes of all shards as one. Owns their file descriptors."""

    def __init__(self) -> None:
        self._shards: list[tuple[int, int, int, str]] = []  # start, end, file descriptor, name
        self.num_bytes = 0

    def add(self, shard: _Shard, path: Path) -> None:
        """Open the next shard."""
        if shard.global_off != self.num_bytes or not 0 < shard.nbytes < 1 << 60:
            raise InvalidCheckpoint(
                f"shard {shard.file} has {shard.nbytes} bytes from {shard.global_off} on, "
                f"the one before it ends at {self.num_bytes}"
            )
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            raise InvalidCheckpoint(f"cannot open {shard.file}: {exc.strerror}") from exc
        self._shards.append((self.num_bytes, self.num_bytes + shard.nbytes, descriptor, shard.file))
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < shard.nbytes:
            raise InvalidCheckpoint(f"{shard.file} has {status.st_size} bytes instead of {shard.nbytes}")
        self.num_bytes += shard.nbytes

    def read(self, tensor: StoredTensor, start: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return bytes of ``tensor``; raise InvalidCheckpoint if a file became shorter."""
        out: NDArray[np.uint8] = np.empty(num_bytes, np.uint8)
        done, view = 0, out.data
        while done < num_bytes:
            place = tensor.offset + start + done
            first, end, descriptor, name = next(shard for shard in self._shards if place < shard[1])
            got = os.preadv(descriptor, [view[done : done + end - place]], place - first)
            if got == 0:
                raise InvalidCheckpoint(f"{name} became shorter while {tensor.name} was read")
            done += got
        return out

    def close(self) -> None:
        """Close all files."""
        for _, _, descriptor, _ in self._shards:
            os.close(descriptor)
        self._shards.clear()


class FreeTokenCheckpoint(Checkpoint):
    """An open FTW version 1 folder: ``tensors`` outside the experts, and the banks of the experts.

    banks: (name, layer counted over those with experts) -> ``[E, …]``. quant_format: their layout.
    """

    suffix = ".ftw"

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._region = _Region()
        self._labels: list[str] = []
        self.banks: dict[tuple[str, int], StoredTensor] = {}
        self.quant_format: str | None = None
        self._flat: list[StoredTensor] = []
        super().__init__(files)

    @property
    def shard_names(self) -> list[str]:
        """The names of the files of weights."""
        return self._labels

    def close(self) -> None:
        """Close all files."""
        self._region.close()

    def split_banks(self, num_layers: int) -> None:
        """Divide banks of all layers among ``num_layers``; raise InvalidCheckpoint if that cannot be."""
        for bank in self._flat:
            if not bank.shape or bank.shape[0] % num_layers or bank.shape[0] == 0:
                raise InvalidCheckpoint(
                    f"bank {bank.name} of shape {list(bank.shape)} has no {num_layers} layers"
                )
            shape = (bank.shape[0] // num_layers, *bank.shape[1:])
            num_bytes = bank.num_bytes // num_layers
            for layer in range(num_layers):
                name = f"{bank.name}#L{layer:05}"
                start = bank.offset + layer * num_bytes
                self.banks[bank.name, layer] = StoredTensor(
                    self._region, name, bank.dtype, shape, start, num_bytes
                )
        self._flat = []
        for name, layer in self.banks:
            if layer >= num_layers:
                raise InvalidCheckpoint(f"bank {name}#L{layer:05} belongs to none of {num_layers} layers")

    def _open(self) -> dict[str, StoredTensor]:
        data = self.side(INDEX)
        if data is None:
            raise InvalidCheckpoint(f"{INDEX} is missing", "give all files of the folder")
        try:
            index = msgspec.json.decode(data, type=_Index)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise InvalidCheckpoint(f"{INDEX} is broken: {exc}"[:300]) from exc
        if (index.format, index.version) != ("freetoken_weight", VERSION):
            raise Unsupported(f"not FTW version {VERSION}: {index.format!r:.40} version {index.version}")
        if not 0 < len(index.shards) <= MAX_SHARDS or not 0 < len(index.tensors) <= MAX_TENSORS:
            raise InvalidCheckpoint(
                f"{INDEX} has {len(index.shards)} shards and {len(index.tensors)} tensors"
            )
        for shard in sorted(index.shards, key=lambda shard: shard.global_off):
            if shard.file not in self._files:
                raise InvalidCheckpoint(
                    f"shard {shard.file!r:.100} is missing", "give all files of the folder"
                )
            self._region.add(shard, self._files[shard.file])
            self._labels.append(shard.file)
        self.quant_format = index.quant_format
        return self._place(index)

    def _place(self, index: _Index) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        seen: set[str] = set()
        end = 0
        for entry in sorted(index.tensors, key=lambda entry: entry.global_off):
            tensor = self._tensor(entry)
            if entry.name in seen or tensor.offset < end:
                raise InvalidCheckpoint(f"tensor {entry.name!r:.100} is there twice or overlaps another")
            seen.add(entry.name)
            end = tensor.offset + tensor.num_bytes
            bank = _BANK.fullmatch(entry.name)
            if entry.kind == "weight":
                tensors |= self._named(tensor)
            elif entry.kind != "experts_bank":
                raise InvalidCheckpoint(
                    f"tensor {entry.name!r:.100} is of an unknown kind: {entry.kind!r:.40}"
                )
            elif bank is None:
                self._flat.append(tensor)
            else:
                self.banks[bank["name"], int(bank["layer"])] = tensor
        return tensors

    def _tensor(self, entry: _Entry) -> StoredTensor:
        dtype = DTYPES.get(entry.dtype)
        if not 0 < len(entry.name) <= MAX_NAME_BYTES or dtype is None:
            raise InvalidCheckpoint(f"tensor {entry.name!r:.100} has an unknown dtype: {entry.dtype!r:.30}")
        if len(entry.shape) > MAX_DIMS or min(entry.shape, default=0) < 0:
            raise InvalidCheckpoint(
                f"tensor {entry.name!r:.100} has an impossible shape: {entry.shape!r:.100}"
            )
        num_bytes = ITEM_BYTES[dtype]
        for dim in entry.shape:
            num_bytes *= dim
        start = entry.global_off
        if entry.nbytes != num_bytes or start < 0 or start + num_bytes > self._region.num_bytes:
            raise InvalidCheckpoint(
                f"tensor {entry.name!r:.100} of {num_bytes} bytes does not lie at {start} + {entry.nbytes} "
                f"of {self._region.num_bytes}"
            )
        return StoredTensor(self._region, entry.name, dtype, tuple(entry.shape), start, num_bytes)

    def _named(self, tensor: StoredTensor) -> dict[str, StoredTensor]:
        """Return the tensor by name, or the parts of its rows that have names of their own."""
        match = _FUSED.fullmatch(tensor.name)
        if match is None:
            return {tensor.name: tensor}
        if match["what"] == "gate_up":
            parts = {"gate_proj": 1, "up_proj": 1}
        else:
            heads, groups = self._integer("num_attention_heads"), self._integer("num_key_value_heads")
            parts = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
        total = sum(parts.values())
        rows = tensor.shape[0] if tensor.shape else 0
        if rows == 0 or rows % total:
            raise InvalidCheckpoint(f"the {rows} rows of {tensor.name} are not shared by {' '.join(parts)}")
        named, offset = {}, tensor.offset
        for part, share in parts.items():
            name = f"{match['stem']}.{part}.{match['kind']}"
            shape = (rows // total * share, *tensor.shape[1:])
            num_bytes = tensor.num_bytes // total * share
            named[name] = StoredTensor(self._region, name, tensor.dtype, shape, offset, num_bytes)
            offset += num_bytes
        return named

    def _integer(self, name: str) -> int:
        value: Any = self.config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 16:
            raise InvalidCheckpoint(f"{name} of config.json is not between 1 and 65536: {value!r:.50}")
        return value
