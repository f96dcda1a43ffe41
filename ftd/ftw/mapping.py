"""A model's blobs without reading them: dense ones as mappings of their files, experts as bare addresses.

Whoever touches a byte of a dense blob gets it through the page cache, which is right for a few small tensors;
the rest goes past it, in direct reads of any run. Addresses of experts hold memory only where they are to be
read into it; elsewhere touching them ends the process, so that nobody mistakes them for weights.
"""

import mmap
import os
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftd.ftw import direct, reader
from ftd.ftw.format import FtwConfig


class MappedBlobs:
    """The blobs of ``config``: ``arrays`` in its order, those of experts one run. Owns the files.

    hold_experts: experts get memory. Raises InvalidFtw, BlobNotFound or DamagedBlob if the files are others.
    """

    def __init__(self, config: FtwConfig, blob_paths: Mapping[str, Path], *, hold_experts: bool) -> None:
        reader.check_files(config, blob_paths)
        self._config = config
        self._paths = [Path(blob_paths[blob.digest]) for blob in config.blobs]
        self._descriptors: dict[int, int] = {}
        self.expert_blobs = [] if config.experts is None else list(config.experts.blobs)
        arrays: dict[int, NDArray[np.uint8]] = {}
        if self.expert_blobs:
            sizes = [config.blobs[index].size for index in self.expert_blobs]
            area = reader.allocate(sum(sizes)) if hold_experts else _reserve(sum(sizes))
            ends = np.cumsum(sizes).tolist()
            for index, size, end in zip(self.expert_blobs, sizes, ends, strict=True):
                arrays[index] = area[end - size : end]
        self.arrays = [
            arrays[index] if index in arrays else _map(path) for index, path in enumerate(self._paths)
        ]
        first = [array.__array_interface__["data"][0] for array in self.arrays]
        self._by_address = sorted((address, index) for index, address in enumerate(first))

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the blob that holds ``address``, and at which byte; None if none does."""
        row = bisect_right(self._by_address, (address, len(self.arrays))) - 1
        if row < 0:
            return None
        start, index = self._by_address[row]
        return (index, address - start) if address < start + self.arrays[index].nbytes else None

    def open(self, index: int, probe: memoryview) -> None:
        """Prepare to read a blob; ``probe`` is memory of a block that reads go to."""
        if index not in self._descriptors:
            self._descriptors[index] = direct.open_direct(self._paths[index], probe)

    def read(self, index: int, start: int, target: memoryview) -> None:
        """Fill ``target`` from ``start`` of an opened blob on; from any thread. Raises DamagedBlob."""
        direct.read_run(self._descriptors[index], target, start, self._config.blobs[index].digest)

    def close(self) -> None:
        """Close the files; arrays stay as long as somebody holds them."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _map(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        # Private and writable, because views that may not be written are refused in places
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)


def _reserve(num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0), np.uint8)
