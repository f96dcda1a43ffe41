"""GGUF versions 2 and 3, read with bounds: the metadata and tensor infos of one file.

    file   := "GGUF" · version u32 · tensors u64 · pairs u64 · pair… · info… · zeros to alignment · data
    pair   := key string · type u32 · value
    string := bytes u64 · UTF-8
    array  := element type u32 · elements u64 · element…         (arrays of arrays are refused)
    info   := name string · dims u32 · dim u64… · type u32 · offset u64 (in data; 0 mod alignment)

Everything is little-endian; dims[0] is the length of a row. No count, length or offset is believed: each is
compared with the bytes left in the file before anything is allocated, and every fault raises InvalidGguf.
"""

import os
import stat
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidGguf

MAX_HEADER_BYTES = 512 << 20
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ITEMS = 1 << 23  # array elements of one file; the largest vocabularies have 2^18 tokens and 2^19 merges
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 256
MAX_ALIGNMENT = 1 << 20
_FIRST_READ_BYTES = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}

Value = bool | int | float | str | list[str] | NDArray[np.generic]

# ggml type -> (name, values in a block, bytes of a block)
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    4: ("MXFP4_PAIRS", 32, 17),  # Ollama's, in a number that ggml has given up
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ggml type name, dims as in the file (row length first), absolute offset, size in bytes."""

    name: str
    type: str
    dims: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_values(self) -> int:
        """How many values the tensor has."""
        product = 1
        for dim in self.dims:
            product *= dim
        return product


class _Cursor:
    """Reads the header front to back and holds it in memory, with at most as much again read ahead."""

    def __init__(self, descriptor: int, file_bytes: int) -> None:
        self._descriptor = descriptor
        self._file_bytes = file_bytes
        self._data = b""
        self.position = 0
        self.items_left = MAX_ITEMS

    @property
    def left(self) -> int:
        """Bytes of the file behind the cursor."""
        return self._file_bytes - self.position

    def _need(self, num_bytes: int, what: str) -> int:
        """Make ``num_bytes`` at the cursor readable, step over them and return where they start."""
        start, end = self.position, self.position + num_bytes
        if num_bytes > self.left:
            raise InvalidGguf(f"file ends inside {what} at byte {start}: needs {num_bytes}, has {self.left}")
        if end > MAX_HEADER_BYTES:
            raise InvalidGguf(f"header is larger than {MAX_HEADER_BYTES} bytes: {what} at byte {start}")
        while end > len(self._data):
            wanted = min(self._file_bytes, max(end, 2 * len(self._data), _FIRST_READ_BYTES)) - len(self._data)
            more = os.pread(self._descriptor, wanted, len(self._data))
            if not more:
                raise InvalidGguf(f"file became shorter while it was read: {len(self._data)} bytes")
            self._data += more
        self.position = end
        return start

    def scalar(self, kind: int, what: str) -> bool | int | float:
        """Read one scalar of GGUF value type ``kind``."""
        layout = _SCALARS.get(kind)
        if layout is None:
            raise InvalidGguf(f"unknown value type {kind} of {what}")
        start = self._need(struct.calcsize(layout), what)
        if kind == 7 and self._data[start] > 1:
            raise InvalidGguf(f"a bool is neither 0 nor 1: {self._data[start]} in {what}")
        value: bool | int | float = struct.unpack_from(layout, self._data, start)[0]
        return value

    def count(self, layout: int, what: str) -> int:
        """Read an unsigned integer of value type ``layout``."""
        return int(self.scalar(layout, what))

    def string(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        """Read one string of at most ``max_bytes``."""
        length = self.count(10, what)
        if length > max_bytes:
            raise InvalidGguf(f"{what} is longer than {max_bytes} bytes: {length}")
        start = self._need(length, what)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError as exc:
            raise InvalidGguf(f"{what} is not UTF-8 at byte {start + exc.start}") from exc

    def array(self, what: str) -> list[str] | NDArray[np.generic]:
        """Read one array: strings as a list, numbers as a NumPy array of their type."""
        kind, length = self.count(4, what), self.count(10, what)
        if length > self.items_left:
            raise InvalidGguf(f"arrays have more than {MAX_ITEMS} elements: {length} in {what}")
        self.items_left -= length
        if kind == _STRING:
            if 8 * length > self.left:
                raise InvalidGguf(f"file ends inside {what}: {length} strings, {self.left} bytes left")
            return self._strings(length, what)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise InvalidGguf(f"unknown element type {kind} of {what}")
        start = self._need(length * struct.calcsize(layout), what)
        raw: NDArray[np.generic] = np.frombuffer(self._data, np.dtype(layout).str, length, start).copy()
        if kind == 7 and np.any(raw.view(np.uint8) > 1):
            raise InvalidGguf(f"a bool is neither 0 nor 1 in {what}")
        return raw

    def _strings(self, length: int, what: str) -> list[str]:
        """Read ``length`` strings; a vocabulary has half a million, so those in memory are read inline."""
        texts = []
        for _ in range(length):
            start = self.position + 8
            end = start + int.from_bytes(self._data[start - 8 : start], "little")
            if start > len(self._data) or end > len(self._data):
                texts.append(self.string(what))
                continue
            try:
                texts.append(self._data[start:end].decode())
            except UnicodeDecodeError as exc:
                raise InvalidGguf(f"{what} is not UTF-8 at byte {start + exc.start}") from exc
            self.position = end
        return texts

    def value(self, what: str) -> Value:
        """Read a type and a value of that type."""
        kind = self.count(4, what)
        if kind == _STRING:
            return self.string(what)
        return self.array(what) if kind == _ARRAY else self.scalar(kind, what)


@dataclass(slots=True)
class GgufFile:
    """One open GGUF file: its metadata and tensor infos. Owns the file descriptor until ``close``."""

    path: Path
    descriptor: int
    version: int
    file_bytes: int
    metadata: dict[str, Value]
    tensors: list[TensorInfo]
    _closed: bool = field(default=False, repr=False)

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Open and parse the header of ``path``; raise InvalidGguf."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            raise InvalidGguf(f"cannot open {path.name}: {exc.strerror}") from exc
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidGguf(f"not a regular file: {path.name}")
            file = cls._parse(path, descriptor, status.st_size)
            opened.pop_all()  # it owns the descriptor
            return file

    @classmethod
    def _parse(cls, path: Path, descriptor: int, file_bytes: int) -> "GgufFile":
        if os.pread(descriptor, 4, 0) != b"GGUF":
            raise InvalidGguf(f"not a GGUF file: {path.name}", "give a file that starts with the bytes GGUF")
        cursor = _Cursor(descriptor, file_bytes)
        cursor.count(4, "the magic")
        version = cursor.count(4, "the version")
        if version not in (2, 3):
            kind = "big-endian GGUF" if version in (2 << 24, 3 << 24) else f"GGUF version {version}"
            raise InvalidGguf(f"{kind} is not supported", "convert the model to little-endian GGUF version 3")
        num_tensors, num_pairs = cursor.count(10, "the tensor count"), cursor.count(10, "the pair count")
        if num_pairs > MAX_PAIRS or num_tensors > MAX_TENSORS:
            raise InvalidGguf(f"too many tensors or metadata pairs: {num_tensors} tensors, {num_pairs} pairs")
        metadata: dict[str, Value] = {}
        for index in range(num_pairs):
            key = cursor.string(f"key {index}", MAX_KEY_BYTES)
            if not key or key in metadata:
                raise InvalidGguf(f"metadata key is empty or there twice: {key!r:.100}")
            metadata[key] = cursor.value(f"{key:.100}")
        alignment = _alignment(metadata)
        infos = [_info(cursor, index) for index in range(num_tensors)]
        data_start = -(-cursor.position // alignment) * alignment
        tensors = _place(infos, alignment, data_start, file_bytes)
        return cls(path, descriptor, version, file_bytes, metadata, tensors)

    def read(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a whole tensor; raise InvalidGguf if the file has become shorter."""
        out: NDArray[np.uint8] = np.empty(tensor.num_bytes, np.uint8)
        self.read_into(out, tensor, 0)
        return out

    def read_into(self, out: NDArray[np.uint8], tensor: TensorInfo, start: int) -> None:
        """Fill ``out`` with the bytes of a tensor from its byte ``start`` on."""
        assert start >= 0 and start + len(out) <= tensor.num_bytes
        view, done, wanted = out.data, 0, len(out)
        while done < wanted:
            got = os.preadv(self.descriptor, [view[done:]], tensor.offset + start + done)
            if got == 0:
                raise InvalidGguf(
                    f"file became shorter while tensor {tensor.name} was read: {self.path.name}"
                )
            done += got

    def close(self) -> None:
        """Close the file; later reads fail."""
        if not self._closed:
            self._closed = True
            os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _alignment(metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_ALIGNMENT:
        raise InvalidGguf(f"general.alignment is not between 1 and {MAX_ALIGNMENT}: {value!r:.50}")
    if value & (value - 1):
        raise InvalidGguf(f"general.alignment is not a power of two: {value}")
    return value


def _info(cursor: _Cursor, index: int) -> TensorInfo:
    """Read one tensor info; its offset still counts from the start of the data."""
    name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    num_dims = cursor.count(4, f"tensor {name}")
    if not 1 <= num_dims <= 4:
        raise InvalidGguf(f"tensor {name!r} does not have 1 to 4 dims: {num_dims}")
    dims = tuple(cursor.count(10, f"tensor {name}") for _ in range(num_dims))
    kind, offset = cursor.count(4, f"tensor {name}"), cursor.count(10, f"tensor {name}")
    if kind not in TYPES:
        raise InvalidGguf(f"tensor {name!r} has an unknown type: {kind}")
    type_name, block, block_bytes = TYPES[kind]
    values = 1
    for dim in dims:
        values *= dim
    if values <= 0 or dims[0] % block:
        raise InvalidGguf(f"tensor {name!r} has impossible dims for blocks of {block}: {list(dims)}")
    return TensorInfo(name, type_name, dims, offset, values // block * block_bytes)


def _place(infos: list[TensorInfo], alignment: int, data_start: int, file_bytes: int) -> list[TensorInfo]:
    """Return the infos with absolute offsets after checking that the tensors lie apart inside the file."""
    placed = []
    for info in infos:
        if info.offset % alignment:
            raise InvalidGguf(
                f"tensor {info.name!r} is not at a multiple of {alignment}: offset {info.offset}"
            )
        if data_start + info.offset + info.num_bytes > file_bytes:
            raise InvalidGguf(
                f"tensor {info.name!r} ends behind the file: "
                f"{data_start} + {info.offset} + {info.num_bytes} > {file_bytes}",
                "the file is cut short or damaged: fetch it again",
            )
        placed.append(TensorInfo(info.name, info.type, info.dims, data_start + info.offset, info.num_bytes))
    if len({info.name for info in placed}) != len(placed):
        raise InvalidGguf("two tensors have the same name")
    in_order = sorted(placed, key=lambda info: info.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.num_bytes > after.offset:
            raise InvalidGguf(f"tensors overlap: {before.name!r} and {after.name!r} at {after.offset}")
    return placed
