"""A model's blobs in place: addresses, mappings and direct reads against the bytes that were written."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from ftw_draft import draft

from ftd.errors import BlobNotFound, DamagedBlob
from ftd.ftw import reader
from ftd.ftw.format import FtwConfig
from ftd.ftw.mapping import MappedBlobs
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import FtwWriter
from ftd.kernels.quant import QuantMatrix

NUM_EXPERTS, LAYERS = 3, [0, 2]
DRAFT = draft()
Files = tuple[FtwConfig, dict[str, Path]]


def values(number: int, *shape: int) -> QuantMatrix:
    """Return a matrix of one value."""
    return QuantMatrix("f32", shape, (np.full(shape, number, np.float32),))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A dense blob, and six records in blobs of four."""
    sink = DirectorySink(tmp_path_factory.mktemp("blobs"))
    with FtwWriter(sink, chunk_bytes=4096, expert_blob_bytes=4 * 4096) as writer:
        writer.add_matrix("w", values(-1, 50, 60))
        writer.begin_experts(NUM_EXPERTS, LAYERS, [[("down", "f32", (10, 100))]] * 2)
        for number in range(len(LAYERS) * NUM_EXPERTS):
            writer.add_expert({"down": values(number, 10, 100)})
        written = writer.finish(DRAFT)
    return written.config, {blob.digest: sink.path(blob.digest) for blob in written.weights}


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_dense_blobs_are_their_files_and_experts_are_one_run(files: Files) -> None:
    config, paths = files
    blobs = MappedBlobs(config, paths, hold_experts=True)
    assert blobs.expert_blobs == list(config.experts.blobs) and len(blobs.expert_blobs) == 2
    for index, (blob, array) in enumerate(zip(config.blobs, blobs.arrays, strict=True)):
        assert array.nbytes == blob.size
        if index not in blobs.expert_blobs:
            assert array.tobytes() == paths[blob.digest].read_bytes()
            array[0] ^= 255  # private: what is written does not reach the file
            assert array.tobytes() != paths[blob.digest].read_bytes()
    first, second = (blobs.arrays[index] for index in blobs.expert_blobs)
    assert address(first) + first.nbytes == address(second)
    blobs.close()


def test_experts_that_are_held_can_be_read_in_place(files: Files) -> None:
    config, paths = files
    blobs = MappedBlobs(config, paths, hold_experts=True)
    probe = memoryview(mmap.mmap(-1, 4096))
    for index in blobs.expert_blobs:
        blobs.open(index, probe)
        blobs.open(index, probe)  # once is enough
        blobs.read(index, 0, blobs.arrays[index].data)
    blobs.close()
    banks = reader.expert_banks(config, blobs.arrays)
    assert list(banks) == LAYERS
    for layer, read in enumerate(banks.values()):
        for expert in range(NUM_EXPERTS):
            found = np.frombuffer(read.records[expert, : 4 * 10 * 100].tobytes(), np.float32)
            assert (found == layer * NUM_EXPERTS + expert).all()


def test_any_run_of_a_blob_can_be_read(files: Files) -> None:
    config, paths = files
    blobs = MappedBlobs(config, paths, hold_experts=False)
    target = memoryview(mmap.mmap(-1, 8192))
    index = blobs.expert_blobs[0]
    blobs.open(index, target)
    blobs.read(index, 4096, target)
    assert bytes(target) == paths[config.blobs[index].digest].read_bytes()[4096 : 3 * 4096]
    with pytest.raises(DamagedBlob, match=config.blobs[index].digest):
        blobs.read(index, config.blobs[index].size, target)
    blobs.close()


def test_addresses_lead_back_to_blob_and_byte(files: Files) -> None:
    blobs = MappedBlobs(*files, hold_experts=False)
    for index, array in enumerate(blobs.arrays):
        start = address(array)
        assert blobs.find(start) == (index, 0)
        assert blobs.find(start + array.nbytes - 1) == (index, array.nbytes - 1)
    spans = [(address(array), address(array) + array.nbytes) for array in blobs.arrays]
    for _, end in spans:
        if not any(first <= end < last for first, last in spans):
            assert blobs.find(end) is None
    assert blobs.find(0) is None and blobs.find(2**63) is None


def test_closing_closes_the_files_and_leaves_the_arrays(files: Files) -> None:
    before = len(os.listdir("/proc/self/fd"))
    blobs = MappedBlobs(*files, hold_experts=False)
    probe = memoryview(mmap.mmap(-1, 4096))
    for index in range(len(blobs.arrays)):
        blobs.open(index, probe)
    blobs.close()
    blobs.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # a mapping keeps one of the dense blob
    (dense,) = (i for i in range(len(blobs.arrays)) if i not in blobs.expert_blobs)
    assert np.frombuffer(blobs.arrays[dense][:4], np.float32)[0] == -1


def test_files_that_are_others_are_refused_before_anything_is_mapped(files: Files, tmp_path: Path) -> None:
    config, paths = files
    digest = config.blobs[0].digest
    with pytest.raises(BlobNotFound, match=digest):
        MappedBlobs(config, {**paths, digest: tmp_path / "gone"}, hold_experts=True)
    short = tmp_path / "short"
    short.write_bytes(b"x" * 4096)
    with pytest.raises(DamagedBlob, match="4096"):
        MappedBlobs(config, {**paths, digest: short}, hold_experts=True)


def test_who_takes_addresses_of_experts_for_weights_is_ended(files: Files) -> None:
    """Rather than computing with zeros."""
    config, paths = files
    program = (
        "import sys, msgspec; from pathlib import Path; from ftd.ftw.format import FtwConfig;"
        "from ftd.ftw.mapping import MappedBlobs;"
        "config = msgspec.json.decode(sys.argv[1], type=FtwConfig);"
        "paths = {d: Path(p) for d, p in msgspec.json.decode(sys.argv[2]).items()};"
        "blobs = MappedBlobs(config, paths, hold_experts=False);"
        "print('mapped', flush=True);"
        "print(blobs.arrays[blobs.expert_blobs[0]][0])"
    )
    texts = [msgspec.json.encode(config), msgspec.json.encode({d: str(p) for d, p in paths.items()})]
    result = subprocess.run(
        [sys.executable, "-c", program, *map(bytes.decode, texts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "mapped\n" and result.returncode < 0, result.stderr
