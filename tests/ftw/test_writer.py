"""ftd.ftw.writer against bytes typed by hand, and what is left behind when writing fails."""

import hashlib

import numpy as np
import pytest
from ftw_draft import draft

from ftd.errors import InvalidFtw
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import ChunkHasher, FtwWriter
from ftd.kernels.quant import QuantMatrix

DRAFT = draft(hyperparameters={"vocab_size": 2}, quantization="Q8_0", parameter_count=65)
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


def expert(number: int) -> dict[str, QuantMatrix]:
    """Return the tensors of an expert whose bytes name it."""
    codes = np.full((2, 32), number, np.int8)
    scales = np.full((2, 1), number, np.float16)
    bias = np.full((1, 2), number, np.float32)
    return {
        "down": QuantMatrix("q8_0", (2, 32), (codes, scales)),
        "down_bias": QuantMatrix("f32", (1, 2), (bias,)),
    }


EXPERT = (("down", "q8_0", (2, 32)), ("down_bias", "f32", (1, 2)))


@pytest.mark.parametrize("records_per_blob", [1, 3, 4, 6, 7])
def test_expert_records_never_cross_a_blob(sink: DirectorySink, records_per_blob: int) -> None:
    record_bytes = 8192
    with FtwWriter(
        sink, chunk_bytes=4096, expert_blob_bytes=records_per_blob * record_bytes + 4095
    ) as writer:
        writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
        writer.begin_experts(3, [1, 4], [EXPERT, EXPERT])
        for number in range(6):
            writer.add_expert(expert(number))
        written = writer.finish(DRAFT)
    experts = written.config.experts
    assert experts is not None
    assert (experts.record_bytes, experts.num_experts) == (record_bytes, 3)
    data = b""
    for index in experts.blobs:
        part = sink.path(written.config.blobs[index].digest).read_bytes()
        assert len(part) % record_bytes == 0
        data += part
    for number in range(6):
        codes, scales = bytes([number]) * 64, np.float16(number).tobytes() * 2
        bias = np.float32(number).tobytes() * 2
        wanted = (codes + scales).ljust(4096, b"\0") + bias.ljust(4096, b"\0")
        assert data[number * record_bytes : (number + 1) * record_bytes] == wanted
    assert [row.layer for row in experts.layers] == [1, 4]
    assert len(experts.layouts) == 1


def test_layers_of_another_format_have_their_own_layout_and_clean_gaps(sink: DirectorySink) -> None:
    wide = QuantMatrix("f32", (64, 32), (np.ones((64, 32), np.float32),))
    with FtwWriter(sink) as writer:
        writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
        writer.begin_experts(1, [0, 1], [[("down", "f32", (64, 32))], EXPERT])
        writer.add_expert({"down": wide})
        writer.add_expert(expert(7))
        written = writer.finish(DRAFT)
    experts = written.config.experts
    assert experts is not None
    assert (len(experts.layouts), experts.record_bytes) == (2, 8192)
    data = sink.path(written.config.blobs[1].digest).read_bytes()
    assert data[:8192] == wide.planes[0].tobytes()
    assert data[8192 + 68 : 8192 + 4096] == bytes(4096 - 68)


def test_missing_records_and_wrong_shapes_are_refused(sink: DirectorySink) -> None:
    with pytest.raises(InvalidFtw, match="1 expert records are missing"), FtwWriter(sink) as writer:
        writer.add_matrix("w", QuantMatrix("q8_0", (2, 32), (CODES, SCALES)))
        writer.begin_experts(2, [0], [EXPERT])
        writer.add_expert(expert(1))
        writer.finish(DRAFT)
    with pytest.raises(InvalidFtw, match=r"down of record 0 is f32 \[1, 32\]"), FtwWriter(sink) as writer:
        writer.begin_experts(2, [0], [[("down", "q8_0", (1, 32))]])
        writer.add_expert({"down": QuantMatrix("f32", (1, 32), (np.zeros((1, 32), np.float32),))})
    assert list(sink.directory.iterdir()) == []
