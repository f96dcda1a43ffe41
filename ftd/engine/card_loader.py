"""Loads a model's files onto a card while the disk reads; the host never holds a copy of what the card has.

    recording   names what the card needs: ``put`` notes where bytes lie in the files and where they go
    finish      direct reads of the files through a ring of locked buffers, each copied as soon as it is full

Experts that stay in host memory are read into place from the first moment on; recording waits for each
layer's when it comes to it, so that one bank is locked and its first slots filled while the next are read.
"""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ftd.engine import loader, sizing
from ftd.engine.device import Device
from ftd.engine.graphs import Graph
from ftd.engine.sizing import Sizes
from ftd.engine.weights import Weights
from ftd.ftw import reader
from ftd.ftw.format import FtwConfig
from ftd.ftw.mapping import MappedBlobs
from ftd.kernels.quant import ExpertBank

READ_THREADS = 8
READ_BYTES = 4 << 20
# Each tensor begins at a multiple of 256 bytes
ROUNDING_BYTES = 2 << 20


class Placed(msgspec.Struct, frozen=True):
    """Weights for a device: what recording asks for them, and where they are kept there (None: nowhere else).

    files: what they come from, if they do not lie in host memory. is_kept: an engine before had them.
    """

    weights: Weights
    on_device: Any = None
    files: "CardFiles | None" = None
    read_bytes: int = 0
    read_ns: int = 0
    is_kept: bool = False

    def graph(self, make_graph: Callable[..., Graph]) -> Callable[..., Graph]:
        """Return what makes the graph over these weights."""
        return make_graph if self.on_device is None else partial(make_graph, weights=self.on_device)

    @property
    def kept_bytes(self) -> tuple[int, bool]:
        """Bytes that lie where they belong, and whether all experts are among them."""
        if self.on_device is None:
            return self.weights.num_bytes, True
        return self.on_device.num_bytes, self.on_device.has_experts

    @property
    def can_stay(self) -> bool:
        """Whether another graph can be recorded over the same weights."""
        return self.on_device is None or self.files is not None

    @property
    def read(self) -> tuple[int, int]:
        """Bytes read and the nanoseconds that it took, when recording has ended."""
        if self.is_kept:
            return 0, 0
        return (self.read_bytes, self.read_ns) if self.files is None else self.files.read

    def close(self) -> None:
        """Close the files."""
        if self.files is not None:
            self.files.close()


def place(source: loader.Source, device: Device, sizes: Sizes, progress: loader.Progress) -> Placed:
    """Return the weights of ``source`` for a device. Raises what ``source.read`` and ``CardFiles`` do."""
    if isinstance(source, Kept):
        return source.placed
    if device.make_weights is None or device.make_ring is None:
        loaded = source.read(progress)
        return Placed(loaded.weights, None, None, loaded.read_bytes, loaded.read_ns)
    expert_bytes = sizing.expert_bytes(source.config)
    dense_bytes = sum(blob.size for blob in source.config.blobs) - expert_bytes + ROUNDING_BYTES
    on_card = expert_bytes if sizes.experts is None else 0
    if isinstance(source, loader.Files):
        files = CardFiles(
            source.config,
            source.blob_paths,
            device.make_ring,
            progress,
            hold_experts=sizes.experts is not None,
        )
        return Placed(files.weights, device.make_weights(files, dense_bytes, on_card), files)
    loaded = source.read(progress)
    on_device = device.make_weights(None, dense_bytes, on_card)
    return Placed(loaded.weights, on_device, None, loaded.read_bytes, loaded.read_ns)


class Kept:
    """A model that is loaded, as a source: its weights stay where they are.

    experts: what the pool of those that a card does not hold left.
    """

    def __init__(self, config: FtwConfig, placed: Placed, experts: Any = None) -> None:
        self.config = config
        self.experts = experts
        self.placed = replace(placed, is_kept=True)

    def outline(self) -> Weights:
        """Return the weights."""
        return self.placed.weights

    def read(self, progress: loader.Progress) -> loader.Loaded:
        """Return the weights."""
        return loader.Loaded(self.placed.weights, 0, 0)


class CardWeights(Weights):
    """Weights whose experts may still be on their way: ``bank`` waits for them."""

    def __init__(self, weights: Weights, wait: Callable[[int], None]) -> None:
        super().__init__(weights.tensors, weights.banks.values())
        self._rows = {layer: row for row, layer in enumerate(self.banks)}
        self._wait = wait

    def bank(self, layer: int, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        """Return the experts of ``layer`` when they have been read; InvalidFtw as in ``Weights``."""
        bank = super().bank(layer, num_experts, hidden_size, inner_size)
        self._wait(self._rows[layer])
        return bank


class CardFiles:
    """The files of one model on their way to a card; an ``Upload`` of ``ftd.kernels.device_weights``.

    hold_experts: they go to host memory. make_ring: makes the ring of the device. ``progress`` may raise to
    stop the load. Raises InvalidFtw, BlobNotFound or DamagedBlob here, in ``weights`` and in ``finish``.
    """

    def __init__(
        self,
        config: FtwConfig,
        blob_paths: Mapping[str, Path],
        make_ring: Callable[[], Any],
        progress: loader.Progress,
        *,
        hold_experts: bool,
    ) -> None:
        self._started_ns = time.monotonic_ns()
        self._config, self._make_ring = config, make_ring
        self._blobs = MappedBlobs(config, blob_paths, hold_experts=hold_experts)
        self._counter = reader.Counter(progress, sum(blob.size for blob in config.blobs))
        self._pending: dict[int, list[_Piece]] = defaultdict(list)
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._left: list[int] = []
        self._readers: ThreadPoolExecutor | None = None
        self.read = 0, 0
        self.weights = loader.mapped_weights(config, self._blobs)
        if hold_experts and config.experts is not None:
            experts = config.experts
            self._left = [experts.num_experts * experts.record_bytes] * len(experts.layers)
            self.weights = CardWeights(self.weights, self._await_bank)
            self._begin_experts()

    def put(self, source: NDArray[np.uint8], target: Any) -> bool:
        """Note that ``target`` [N] u8 shall equal ``source`` [N]; return False if that lies in no file."""
        found = self._blobs.find(source.__array_interface__["data"][0])
        if found is None:
            return False
        blob, start = found
        self._pending[blob].append(_Piece(start, source.nbytes, target))
        return True

    def finish(self) -> None:
        """Return when everything that was noted is on the card, and all experts are in host memory."""
        pending, self._pending = self._pending, defaultdict(list)
        if pending:
            ring = self._make_ring()
            with contextlib.closing(ring), ThreadPoolExecutor(READ_THREADS, "ftw-read") as threads:
                runs = [
                    threads.submit(self._send, ring, blob, run, pieces)
                    for blob, noted in sorted(pending.items())
                    for run, pieces in self._runs(blob, noted)
                ]
                reader.settle(runs)
        for row in range(len(self._left)):
            self._await_bank(row)
        if not self.read[1]:
            self._counter.complete()
            self.read = self._counter.total, time.monotonic_ns() - self._started_ns

    def close(self) -> None:
        """Stop reading and close the files; ``weights`` stay as long as somebody holds them."""
        self._fail(InterruptedError("the load was given up"))
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
        self._blobs.close()

    def _runs(self, blob: int, noted: list["_Piece"]) -> Iterator[tuple[range, list["_Piece"]]]:
        """Yield what to read of a blob, and the pieces that have bytes in it."""
        size = self._blobs.arrays[blob].nbytes
        by_run: dict[int, list[_Piece]] = defaultdict(list)
        for piece in noted:
            for run in range(piece.start // READ_BYTES, (piece.end - 1) // READ_BYTES + 1):
                by_run[run].append(piece)
        # Opened here, by one thread, with memory that direct reads may go to
        self._blobs.open(blob, reader.allocate(READ_BYTES).data)
        for run, pieces in sorted(by_run.items()):
            yield range(run * READ_BYTES, min((run + 1) * READ_BYTES, size)), pieces

    def _send(self, ring: Any, blob: int, run: range, pieces: list["_Piece"]) -> None:
        """Read a run of a blob into a buffer and begin to copy its pieces."""
        parts = []
        for piece in pieces:
            first, end = max(piece.start, run.start), min(piece.end, run.stop)
            parts.append((first - run.start, piece.target[first - piece.start : end - piece.start]))
        ring.send(lambda target: self._blobs.read(blob, run.start, target), len(run), parts)
        self._counter.add(len(run))

    def _begin_experts(self) -> None:
        """Start to read all experts into host memory, in the order of layers."""
        self._readers = ThreadPoolExecutor(READ_THREADS, "ftw-experts")
        offset = 0
        for blob in self._blobs.expert_blobs:
            array = self._blobs.arrays[blob]
            self._blobs.open(blob, array.data)
            for start in range(0, array.nbytes, READ_BYTES):
                end = min(start + READ_BYTES, array.nbytes)
                self._readers.submit(self._read_experts, blob, range(start, end), offset)
            offset += array.nbytes

    def _read_experts(self, blob: int, run: range, offset: int) -> None:
        """Read a run of a blob that begins ``offset`` bytes into the experts, and count it for its banks."""
        if self._failure is not None:
            return
        try:
            self._blobs.read(blob, run.start, self._blobs.arrays[blob].data[run.start : run.stop])
            self._counter.add(len(run))
        except BaseException as exc:  # it is raised where the experts are needed
            self._fail(exc)
            return
        assert self._config.experts is not None
        bank_bytes = self._config.experts.num_experts * self._config.experts.record_bytes
        first, end = offset + run.start, offset + run.stop
        with self._changed:
            for row in range(first // bank_bytes, (end - 1) // bank_bytes + 1):
                self._left[row] -= min(end, (row + 1) * bank_bytes) - max(first, row * bank_bytes)
            self._changed.notify_all()

    def _await_bank(self, row: int) -> None:
        """Return when the experts in ``row`` are in host memory; raise what kept them away."""
        with self._changed:
            self._changed.wait_for(lambda: self._left[row] == 0 or self._failure is not None)
            if self._left[row] and self._failure is not None:
                raise self._failure

    def _fail(self, exc: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or exc
            self._changed.notify_all()


class _Piece(msgspec.Struct, frozen=True):
    """``num_bytes`` of a blob from ``start`` on that belong into ``target``."""

    start: int
    num_bytes: int
    target: Any

    @property
    def end(self) -> int:
        return self.start + self.num_bytes
