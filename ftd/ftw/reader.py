"""Read FTW: the config, then whole blobs into memory by parallel direct I/O, then tensors as views.

Expert blobs share one run of memory in the order of their records, so that every bank is contiguous however
the files were cut. Memory is anonymous (page-aligned, huge pages where the kernel gives them) and never
copied again. Where the file system refuses O_DIRECT the same code reads through the page cache and says so in
the log.
"""

import logging
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftd.errors import BlobNotFound, DamagedBlob, InvalidFtw
from ftd.ftw import direct
from ftd.ftw.format import MAX_CONFIG_BYTES, BlobEntry, FtwConfig, TensorEntry, parse_config, validate
from ftd.kernels.quant import FORMATS, QuantMatrix
from ftd.log import fields

log = logging.getLogger(__name__)

READ_BYTES = 4 << 20  # large enough for full rate, small enough that all threads finish together
READ_THREADS = 8
Progress = Callable[[int, int], None]


def _no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def read_config(path: Path) -> FtwConfig:
    """Return the validated config in the file ``path``; raise InvalidFtw or BlobNotFound."""
    size = _size(path, path.name)
    if size > MAX_CONFIG_BYTES:
        raise InvalidFtw(f"config is larger than {MAX_CONFIG_BYTES} bytes: {size}")
    return parse_config(path.read_bytes())


def load_blobs(
    config: FtwConfig,
    blob_paths: Mapping[str, Path],
    progress: Progress = _no_progress,
    *,
    verify: bool = False,
    num_threads: int = READ_THREADS,
) -> list[NDArray[np.uint8]]:
    """Return the bytes of every blob of ``config``, in its order.

    blob_paths: digest -> file. progress(done_bytes, total_bytes) is called from reader threads, one at a
    time; verify also compares the hash of each chunk. Raises InvalidFtw, BlobNotFound, DamagedBlob; sizes are
    compared before any memory is taken.
    """
    check_files(config, blob_paths)
    counter = Counter(progress, sum(blob.size for blob in config.blobs))
    started = time.monotonic()
    arrays = _places(config)
    with ThreadPoolExecutor(num_threads, "ftw-read") as threads:
        for blob, array in zip(config.blobs, arrays, strict=True):
            _read_blob(blob, Path(blob_paths[blob.digest]), array.data, threads, counter)
        if verify:
            for blob, array in zip(config.blobs, arrays, strict=True):
                _verify(blob, array.data, threads)
    seconds = time.monotonic() - started
    log.info(
        fields(
            "weights read",
            bytes=counter.total,
            seconds=seconds,
            gbps=counter.total / max(seconds, 1e-9) / 1e9,
        )
    )
    return arrays


def check_files(config: FtwConfig, blob_paths: Mapping[str, Path]) -> None:
    """Raise InvalidFtw, BlobNotFound or DamagedBlob unless the files are those that ``config`` describes."""
    sizes = {}
    for blob in config.blobs:
        if blob.digest not in blob_paths:
            raise BlobNotFound(f"blob not found: {blob.digest}")
        sizes[blob.digest] = _size(Path(blob_paths[blob.digest]), blob.digest)
        if sizes[blob.digest] != blob.size:
            raise DamagedBlob(
                f"{blob.digest} has {sizes[blob.digest]} bytes instead of {blob.size}", "pull the model again"
            )
    validate(config, sizes)


def tensors(config: FtwConfig, blobs: Sequence[NDArray[np.uint8]]) -> dict[str, QuantMatrix]:
    """Return every dense tensor of ``config`` as views into ``blobs``, which must outlive them."""
    return {entry.name: matrix(entry, blobs[entry.blob]) for entry in config.tensors}


def matrix(entry: TensorEntry, data: NDArray[np.uint8]) -> QuantMatrix:
    """Return one tensor as views into ``data``, the bytes of its blob or of one expert record."""
    spec = FORMATS[entry.format]
    planes: list[NDArray[np.generic]] = []
    for plane, place in zip(spec.planes, entry.planes, strict=True):
        rows, items = spec.plane_shape(plane, entry.shape)
        dtype = np.dtype(plane.dtype)
        num_bytes = rows * items * dtype.itemsize
        planes.append(data[place.offset : place.offset + num_bytes].view(dtype).reshape(rows, items))
    return QuantMatrix(entry.format, entry.shape, tuple(planes))


@dataclass(frozen=True, slots=True)
class ExpertBank:
    """The records of all experts of one layer, in one run of memory.

    records  [E, S] u8; plane p of the tensor ``role`` of expert e begins at byte
             ``e * S + layout[role].planes[p].offset`` of it
    layout   role (gate, up, down, gate_bias …) -> format, shape and plane offsets, the same for every expert
    """

    layer: int
    records: NDArray[np.uint8]
    layout: Mapping[str, TensorEntry]

    @property
    def num_experts(self) -> int:
        """E, how many experts the layer has."""
        return len(self.records)

    @property
    def record_bytes(self) -> int:
        """S, the distance between the records of two neighbours."""
        return len(self.records[0])

    def matrix(self, role: str, expert: int) -> QuantMatrix:
        """Return one tensor of one expert as views into its record."""
        return matrix(self.layout[role], self.records[expert])


def expert_banks(config: FtwConfig, blobs: Sequence[NDArray[np.uint8]]) -> dict[int, ExpertBank]:
    """Return the bank of every layer with experts, by layer, as views into what ``load_blobs`` returned."""
    experts = config.experts
    if experts is None:
        return {}
    parts = [blobs[index] for index in experts.blobs]
    addresses = [part.__array_interface__["data"][0] for part in parts]
    for part, address, following in zip(parts, addresses, addresses[1:], strict=False):
        assert address + part.nbytes == following, "expert blobs do not follow each other in memory"
    shape = (len(experts.layers), experts.num_experts, experts.record_bytes)
    assert sum(part.nbytes for part in parts) == shape[0] * shape[1] * shape[2]
    strides = (shape[1] * shape[2], shape[2], 1)
    records = np.lib.stride_tricks.as_strided(parts[0], shape, strides, writeable=False)
    return {
        row.layer: ExpertBank(
            row.layer, records[index], {entry.name: entry for entry in experts.layouts[row.layout]}
        )
        for index, row in enumerate(experts.layers)
    }


class Counter:
    """Adds up bytes over threads and reports them one call at a time, never falling."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self.total = total

    def add(self, num_bytes: int) -> None:
        """Count what was read; raises what ``progress`` does."""
        with self._lock:
            self._done = min(self._done + num_bytes, self.total)
            self._progress(self._done, self.total)

    def complete(self) -> None:
        """Report everything, also what nobody had to read."""
        if self._done < self.total:
            self.add(self.total - self._done)


def _size(path: Path, name: str) -> int:
    try:
        status = path.stat()
    except OSError as exc:
        raise BlobNotFound(f"blob not found: {name}", "pull the model again") from exc
    if not stat.S_ISREG(status.st_mode):
        raise DamagedBlob(f"not a regular file: {name}")
    return status.st_size


def _places(config: FtwConfig) -> list[NDArray[np.uint8]]:
    """Return memory for every blob; that of the expert blobs is one run."""
    arrays = {}
    if config.experts is not None:
        order = config.experts.blobs
        area, start = allocate(sum(config.blobs[index].size for index in order)), 0
        for index in order:
            arrays[index] = area[start : start + config.blobs[index].size]
            start += config.blobs[index].size
    return [
        arrays[index] if index in arrays else allocate(blob.size) for index, blob in enumerate(config.blobs)
    ]


def allocate(num_bytes: int) -> NDArray[np.uint8]:
    """Return anonymous memory, page-aligned, in huge pages where the kernel gives them."""
    area = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            area.madvise(mmap.MADV_HUGEPAGE)
        except OSError as exc:  # a kernel without transparent huge pages: slower, not wrong
            log.debug(fields("huge pages refused", reason=exc.strerror))
    return np.frombuffer(area, np.uint8)


def settle(runs: Sequence[Future[None]]) -> None:
    """Return when all have ended; raise the first failure when none runs any more."""
    try:
        for run in runs:
            run.result()
    finally:
        for run in runs:
            run.cancel()
        for run in runs:
            if not run.cancelled():
                run.exception()


def _read_blob(
    blob: BlobEntry, path: Path, target: memoryview, threads: ThreadPoolExecutor, counter: Counter
) -> None:
    descriptor = direct.open_direct(path, target)
    try:
        runs = [
            threads.submit(_read_run, blob, descriptor, target[start : start + READ_BYTES], start, counter)
            for start in range(0, blob.size, READ_BYTES)
        ]
        settle(runs)
    finally:
        os.close(descriptor)  # only now that no thread reads from it


def _read_run(blob: BlobEntry, descriptor: int, target: memoryview, start: int, counter: Counter) -> None:
    direct.read_run(descriptor, target, start, blob.digest)
    counter.add(len(target))


def _verify(blob: BlobEntry, data: memoryview, threads: ThreadPoolExecutor) -> None:
    import hashlib  # with OpenSSL; an engine whose files need no check starts without it

    parts = [data[start : start + blob.chunk_bytes] for start in range(0, blob.size, blob.chunk_bytes)]
    for index, (wanted, got) in enumerate(
        zip(blob.chunks, threads.map(lambda part: hashlib.sha256(part).hexdigest(), parts), strict=True)
    ):
        if wanted != got:
            raise DamagedBlob(f"chunk {index} of {blob.digest} has changed", "pull the model again")
