"""ftd.ftw.writer against bytes typed by hand, and what is left behind when writing fails."""

import hashlib

import numpy as np
import pytest

from ftd.errors import InvalidFtw
from ftd.ftw.format import FtwConfig, Tokens
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import ChunkHasher, FtwWriter
from ftd.kernels.quant import QuantMatrix

DRAFT = FtwConfig(
    architecture="llama",
    hyperparameters={"vocab_size": 2},
    quantization="Q8_0",
    parameter_count=65,
    tokens=Tokens(),
    tensors=[],
    blobs=[],
)
CODES = np.array([[*range(-16, 16)], [*range(32)]], np.int8)
SCALES = np.array([[0.5], [2.0]], np.float16)


def test_golden_blob_bytes(sink: DirectorySink) -> None:
    with FtwWriter(sink, chunk_bytes=4096) as writer:
        writer.add("w", "q8_0", (2, 32), [[CODES[:1], CODES[1:]], [SCALES]])
        writer.add("n", "f32", (1, 1), [[np.array([1.0], np.float32)]])
        written = writer.finish(DRAFT)
    first = bytes([*range(240, 256), *range(16), *range(32)]) + bytes.fromhex("00380040") + bytes(4096 - 68)
    second = bytes.fromhex("0000803f") + bytes(4092)
    (blob,) = written.config.blobs
    assert sink.path(blob.digest).read_bytes() == first + second
    assert blob.digest == f"sha256:{hashlib.sha256(first + second).hexdigest()}"
    assert blob.chunks == [hashlib.sha256(part).hexdigest() for part in (first, second)]
    assert [[plane.offset for plane in entry.planes] for entry in written.config.tensors] == [[0, 64], [4096]]
    assert written.config_blob.size == sink.path(written.config_blob.digest).stat().st_size


def test_planes_begin_at_64_and_tensors_at_4096(sink: DirectorySink) -> None:
    with FtwWriter(sink) as writer:
        for name in ("v", "w"):
            writer.add(name, "q8_0", (1, 32), [[CODES[:1]], [SCALES[:1]]])
        written = writer.finish(DRAFT)
    assert [[plane.offset for plane in entry.planes] for entry in written.config.tensors] == [
        [0, 64],
        [4096, 4160],
    ]


def test_the_same_model_has_the_same_digest(sink: DirectorySink) -> None:
    digests = set()
    for _ in range(2):
        with FtwWriter(sink) as writer:
            writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
            digests.add(writer.finish(DRAFT).config_blob.digest)
    assert len(digests) == 1


def test_leaving_early_leaves_nothing(sink: DirectorySink) -> None:
    with pytest.raises(KeyError), FtwWriter(sink) as writer:
        writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
        raise KeyError
    assert list(sink.directory.iterdir()) == []


def test_a_plane_of_the_wrong_size_is_refused(sink: DirectorySink) -> None:
    with pytest.raises(InvalidFtw, match="has 32 bytes instead of 64"), FtwWriter(sink) as writer:
        writer.add("w", "q8_0", (2, 32), [[CODES[:1]], [SCALES]])
    assert list(sink.directory.iterdir()) == []


def test_a_draft_that_is_not_valid_makes_no_blob(sink: DirectorySink) -> None:
    with pytest.raises(InvalidFtw, match="same name"), FtwWriter(sink) as writer:
        for _ in range(2):
            writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
        writer.finish(DRAFT)
    assert list(sink.directory.iterdir()) == []


def test_a_model_without_tensors_is_refused(sink: DirectorySink) -> None:
    with pytest.raises(InvalidFtw, match="without tensors"), FtwWriter(sink) as writer:
        writer.finish(DRAFT)


@pytest.mark.parametrize("sizes", [[0], [1], [9, 1], [10], [10, 10], [25], [7, 7, 7], [10, 0, 3]])
def test_chunk_hashes_do_not_depend_on_how_bytes_arrive(sizes: list[int]) -> None:
    data = bytes(range(sum(sizes)))
    hasher, start = ChunkHasher(10), 0
    for size in sizes:
        hasher.update(memoryview(data)[start : start + size])
        start += size
    assert hasher.finish() == [
        hashlib.sha256(data[at : at + 10]).hexdigest() for at in range(0, len(data), 10)
    ]
