"""How fast this machine moves weights: memory, disk, and on a card its copies and both paths of experts.

    python -m ftd.engine.ceilings [BLOB]        prints {"rows": [{"name", "bytes_per_s", "note"}, …]}

A process of its own for ``ftd bench bandwidth``, since it imports torch where there is a card. Rates of
experts are those that a load measures, on random records of a model's size.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ftd.engine import devices, expert_plan
from ftd.engine.device import Device
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.synthetic import SyntheticWeights
from ftd.errors import FtdError
from ftd.ftw import direct
from ftd.ftw.reader import READ_BYTES, READ_THREADS
from ftd.kernels import bandwidth, cpu
from ftd.kernels._pool import Pool

FORMATS = ("q4_0", "q4_k", "mxfp4", "q8_0", "bf16")
# Sizes of Qwen3-30B-A3B, whose experts together are larger than the caches; layers share the same records
NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN, HIDDEN_SIZE, INNER_SIZE = 2, 128, 8, 2048, 768
MAX_DISK_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement."""

    name: str
    bytes_per_s: float
    note: str = ""


def measure(blob: Path | None) -> Iterator[Rate]:
    """Yield the rates of this machine as they are measured; ``blob`` is a file of the store to read."""
    threads = len(cpu.usable_cores())
    for count in sorted({1, threads}):
        note = f"{count} thread{'s' if count > 1 else ''}: bounds decode on the processor"
        yield Rate("memory read", bandwidth.measure(count), note)
    if blob is not None and blob.stat().st_size >= direct.BLOCK_BYTES:
        yield disk(blob)
    if devices.missing_for_cuda() is None:
        yield from card(devices.cuda())


def disk(blob: Path) -> Rate:
    """Read whole blocks of ``blob`` as a load does, past the page cache, at most MAX_DISK_BYTES."""
    size = min(blob.stat().st_size, MAX_DISK_BYTES) // direct.BLOCK_BYTES * direct.BLOCK_BYTES
    buffers = memoryview(mmap.mmap(-1, READ_THREADS * READ_BYTES))
    descriptor = direct.open_direct(blob, buffers)

    def read(worker: int) -> None:
        buffer = buffers[worker * READ_BYTES : (worker + 1) * READ_BYTES]
        for start in range(worker * READ_BYTES, size, READ_THREADS * READ_BYTES):
            direct.read_run(descriptor, buffer[: min(READ_BYTES, size - start)], start, blob.name)

    try:
        begin_ns = time.monotonic_ns()
        with ThreadPoolExecutor(READ_THREADS) as readers:
            list(readers.map(read, range(READ_THREADS)))
        seconds = (time.monotonic_ns() - begin_ns) / 1e9
    finally:
        os.close(descriptor)
    return Rate("disk read", size / seconds, f"{size / 1e6:.0f} MB of the store: bounds loading")


def card(device: Device, formats: tuple[str, ...] = FORMATS) -> Iterator[Rate]:
    """Yield what a card copies, and how fast missing experts get to it and run beside it, by format."""
    assert device.rates is not None
    yield Rate("device copy", device.rates.device_copy(), f"{device.label}, read and written: bounds decode")
    yield Rate("host to device", device.rates.host_copy(), "page-locked memory, the copy engine")
    for name in formats:
        yield from experts(device, name)


def experts(device: Device, format_name: str) -> Iterator[Rate]:
    """Yield both paths of missing experts of one format: alone, and at once as split best."""
    weights = SyntheticWeights(format_name, 1)
    bank = weights.bank(0, NUM_EXPERTS, HIDDEN_SIZE, INNER_SIZE)
    record_bytes = bank.records.shape[1]
    assert device.make_experts is not None and device.rates is not None
    needs = ExpertNeeds(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, record_bytes=record_bytes)
    with Pool(device.num_threads()) as threads:
        pool = device.make_experts(needs, NUM_EXPERTS // 4, NUM_CHOSEN, expert_plan.POLICIES["ftd"], None)
        try:
            pool.use_processor(threads, HIDDEN_SIZE, "fast")
            for layer in range(NUM_LAYERS):
                pool.add(weights.bank(layer, NUM_EXPERTS, HIDDEN_SIZE, INNER_SIZE))
            pool.start()
            fetch_rate = device.rates.fetch(pool)
            split = device.rates.experts(pool, NUM_CHOSEN)
        finally:
            pool.close()
    point = max((each for each in split.points if each.tokens == 1), key=lambda each: each.misses)
    moved = point.misses * record_bytes
    misses = f"{point.misses} missing of one token"
    yield Rate(f"{format_name} fill kernel", fetch_rate, "zero-copy, many experts")
    yield Rate(f"{format_name} fetched", moved / point.fetch_seconds, misses)
    yield Rate(f"{format_name} on the processor", moved / point.run_seconds, misses)
    yield Rate(f"{format_name} both at once", moved / point.seconds, f"{misses}, {point.fetched} fetched")


def main(arguments: list[str]) -> int:
    """Print what could be measured; what fails ends the list with an error and exit code 1."""
    rows: list[Rate] = []
    error: dict[str, str | None] = {}
    try:
        rows.extend(measure(Path(arguments[0]) if arguments else None))
    except FtdError as exc:
        error = {"error": exc.message, "hint": exc.hint}
    print(json.dumps({"rows": [asdict(row) for row in rows], **error}))
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
