"""One safetensors file, read with bounds.

    file   := header bytes u64 · header · data
    header := {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …, "__metadata__": {…}}

Offsets count from the start of the data; the tensors must cover it without a gap and without overlap, so a
name that is there twice is found as well. No length or offset is believed: each is compared with the size of
the file before anything is read, and every fault raises InvalidCheckpoint with the names.
"""

import os
import stat
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 512
MAX_DIMS = 8
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class TensorFile(Protocol):
    """What holds the bytes of tensors."""

    def read(self, tensor: "StoredTensor", start: int, num_bytes: int, /) -> NDArray[np.uint8]:
        """Return bytes of ``tensor`` from its byte ``start`` on."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: row-major, ``offset`` is absolute."""

    file: TensorFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def read(self, start: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return ``num_bytes`` bytes of the tensor from byte ``start`` on."""
        assert 0 <= start <= start + num_bytes <= self.num_bytes
        return self.file.read(self, start, num_bytes)


class SafetensorsFile:
    """An open file and its tensors. Owns a file descriptor."""

    def __init__(self, path: Path, label: str) -> None:
        """Open and parse ``path``; ``label`` is what messages call it."""
        self.label = label
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            raise InvalidCheckpoint(f"cannot open {label}: {exc.strerror}") from exc
        with ExitStack() as opened:
            opened.callback(self.close)
            self.tensors = self._parse()
            opened.pop_all()

    def close(self) -> None:
        """Close the file; harmless twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, tensor: StoredTensor, start: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return bytes of ``tensor``; raise InvalidCheckpoint if the file became shorter."""
        out: NDArray[np.uint8] = np.empty(num_bytes, np.uint8)
        done, view = 0, out.data
        while done < num_bytes:
            got = os.preadv(self._descriptor, [view[done:]], tensor.offset + start + done)
            if got == 0:
                raise InvalidCheckpoint(f"{self.label} became shorter while {tensor.name} was read")
            done += got
        return out

    def _parse(self) -> list[StoredTensor]:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidCheckpoint(f"not a regular file: {self.label}")
        start = os.pread(self._descriptor, 8, 0)
        if len(start) < 8:
            raise InvalidCheckpoint(f"{self.label} is no safetensors file: it has {status.st_size} bytes")
        (header_bytes,) = struct.unpack("<Q", start)
        if header_bytes > min(MAX_HEADER_BYTES, status.st_size - 8):
            raise InvalidCheckpoint(
                f"{self.label} has an impossible header of {header_bytes} bytes in a file of {status.st_size}"
            )
        header = os.pread(self._descriptor, header_bytes, 8)
        data_start = 8 + header_bytes
        try:
            raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            raw.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise InvalidCheckpoint(f"{self.label} has a broken header: {exc}"[:300]) from exc
        if not 0 < len(entries) <= MAX_TENSORS:
            raise InvalidCheckpoint(f"{self.label} does not have 1 to {MAX_TENSORS} tensors: {len(entries)}")
        tensors = [self._tensor(name, entry, data_start) for name, entry in entries.items()]
        self._check_cover(tensors, data_start, status.st_size)
        return tensors

    def _tensor(self, name: str, entry: _Entry, data_start: int) -> StoredTensor:
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise InvalidCheckpoint(f"{self.label} has a tensor name of {len(name)} characters")
        if entry.dtype not in ITEM_BYTES:
            raise InvalidCheckpoint(f"tensor {name!r:.100} has an unknown dtype: {entry.dtype!r:.30}")
        if len(entry.shape) > MAX_DIMS or min(entry.shape, default=0) < 0:
            raise InvalidCheckpoint(f"tensor {name!r:.100} has an impossible shape: {entry.shape!r:.100}")
        begin, end = entry.data_offsets
        num_bytes = ITEM_BYTES[entry.dtype]
        for dim in entry.shape:
            num_bytes *= dim
        if begin < 0 or end - begin != num_bytes:
            raise InvalidCheckpoint(
                f"tensor {name!r:.100} of {num_bytes} bytes lies between {begin} and {end} of {self.label}"
            )
        return StoredTensor(self, name, entry.dtype, tuple(entry.shape), data_start + begin, num_bytes)

    def _check_cover(self, tensors: list[StoredTensor], data_start: int, file_bytes: int) -> None:
        end, name = data_start, "the header"
        for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes)):
            if tensor.offset != end:
                raise InvalidCheckpoint(
                    f"{tensor.name!r:.100} of {self.label} does not begin where {name!r:.100} ends: "
                    f"{tensor.offset - data_start} instead of {end - data_start}"
                )
            end, name = tensor.offset + tensor.num_bytes, tensor.name
        if end != file_bytes:
            raise InvalidCheckpoint(
                f"{self.label} has {file_bytes} bytes instead of the {end} that its header describes"
            )
