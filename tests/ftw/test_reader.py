"""ftd.ftw.reader: what was written comes back bit for bit, and what was changed on disk is refused."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from ftw_draft import draft
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftd.errors import BlobNotFound, DamagedBlob, InvalidFtw
from ftd.ftw import reader
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import FtwWriter, WrittenModel
from ftd.kernels.quant import FORMATS, QuantMatrix

DRAFT = draft()


def random_matrix(format: str, rows: int, blocks: int, seed: int) -> QuantMatrix:
    spec, random = FORMATS[format], np.random.default_rng(seed)
    shape = (rows, blocks * spec.block)
    planes = []
    for plane in spec.planes:
        height, items = spec.plane_shape(plane, shape)
        raw = random.integers(0, 256, (height, items * np.dtype(plane.dtype).itemsize), np.uint8)
        planes.append(raw.view(plane.dtype))
    return QuantMatrix(format, shape, tuple(planes))


def write(sink: DirectorySink, matrices: dict[str, QuantMatrix], chunk_bytes: int = 8192) -> WrittenModel:
    with FtwWriter(sink, chunk_bytes) as writer:
        for name, matrix in matrices.items():
            writer.add_matrix(name, matrix)
        return writer.finish(DRAFT)


def paths(sink: DirectorySink, written: WrittenModel) -> dict[str, Path]:
    return {blob.digest: sink.path(blob.digest) for blob in written.config.blobs}


@pytest.fixture
def model(sink: DirectorySink) -> WrittenModel:
    return write(sink, {"a": random_matrix("q4_k", 3, 2, 1), "b": random_matrix("f32", 1, 5000, 2)})


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(list(FORMATS)), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32)
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_come_back_bit_for_bit(
    sink: DirectorySink, parts: list[tuple[str, int, int, int]]
) -> None:
    matrices = {f"t.{index}": random_matrix(*part) for index, part in enumerate(parts)}
    written = write(sink, matrices)
    config = reader.read_config(sink.path(written.config_blob.digest))
    blobs = reader.load_blobs(config, paths(sink, written), verify=True)
    back = reader.tensors(config, blobs)
    assert back.keys() == matrices.keys()
    for name, matrix in matrices.items():
        assert (back[name].format, back[name].shape) == (matrix.format, matrix.shape)
        for ours, theirs in zip(back[name].planes, matrix.planes, strict=True):
            assert ours.tobytes() == theirs.tobytes()
            assert ours.__array_interface__["data"][0] % 64 == 0


def test_blobs_lie_on_pages_and_tensors_are_views(sink: DirectorySink, model: WrittenModel) -> None:
    (blob,) = reader.load_blobs(model.config, paths(sink, model))
    assert blob.__array_interface__["data"][0] % 4096 == 0
    for matrix in reader.tensors(model.config, [blob]).values():
        assert all(np.shares_memory(plane, blob) for plane in matrix.planes)


@pytest.mark.parametrize("refused", ["never", "open", "read"])
def test_bytes_are_the_same_with_and_without_direct_reads(
    sink: DirectorySink, refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = write(sink, {"w": random_matrix("q8_0", 300, 1000, 3)})
    real_open, real_read, opened = os.open, os.preadv, []

    def open_file(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(22, "Invalid argument")
        opened.append(flags & os.O_DIRECT)
        return real_open(path, flags, *rest)

    def read_file(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if len(opened) == 1 and refused == "read":
            raise OSError(22, "Invalid argument")
        return real_read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "preadv", read_file)
    with caplog.at_level("INFO"):
        (blob,) = reader.load_blobs(written.config, paths(sink, written))
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == written.config.blobs[0].digest
    assert ("direct reads refused" in caplog.text) == (refused != "never")


def test_short_reads_are_continued_at_a_block(
    sink: DirectorySink, model: WrittenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_read, offsets = os.preadv, []

    def read_file(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        offsets.append(offset)
        return min(real_read(descriptor, buffers, offset), 5000)

    monkeypatch.setattr(os, "preadv", read_file)
    reader.load_blobs(model.config, paths(sink, model), verify=True)
    assert all(offset % 4096 == 0 for offset in offsets)


def test_progress_ends_at_the_total_and_never_falls(sink: DirectorySink, model: WrittenModel) -> None:
    seen: list[tuple[int, int]] = []
    reader.load_blobs(model.config, paths(sink, model), lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (model.config.blobs[0].size, model.config.blobs[0].size)


@pytest.mark.parametrize("change", [-4096, -1, 1, 4096])
def test_a_blob_of_another_size_is_refused_before_reading(
    sink: DirectorySink, model: WrittenModel, change: int
) -> None:
    (path,) = paths(sink, model).values()
    os.truncate(path, model.config.blobs[0].size + change)
    with pytest.raises(DamagedBlob, match="instead of"):
        reader.load_blobs(model.config, paths(sink, model))


def test_a_blob_that_shrinks_while_it_is_read_is_refused(
    sink: DirectorySink, model: WrittenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = paths(sink, model).values()
    allocate = reader.allocate

    def shrink(num_bytes: int) -> np.ndarray:
        os.truncate(path, 4096)
        return allocate(num_bytes)

    monkeypatch.setattr(reader, "allocate", shrink)
    with pytest.raises(DamagedBlob, match="ends at byte 4096"):
        reader.load_blobs(model.config, paths(sink, model))


def test_one_flipped_bit_is_found_by_its_chunk(sink: DirectorySink, model: WrittenModel) -> None:
    (path,) = paths(sink, model).values()
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedBlob, match="chunk 1 of sha256:"):
        reader.load_blobs(model.config, paths(sink, model), verify=True)


def test_a_missing_blob_is_named(sink: DirectorySink, model: WrittenModel) -> None:
    with pytest.raises(BlobNotFound, match=model.config.blobs[0].digest):
        reader.load_blobs(model.config, {})
    with pytest.raises(BlobNotFound, match=model.config.blobs[0].digest):
        reader.load_blobs(model.config, {model.config.blobs[0].digest: sink.directory / "gone"})


def test_what_is_not_a_regular_file_is_refused(sink: DirectorySink, model: WrittenModel) -> None:
    pipe = sink.directory / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(DamagedBlob, match="not a regular file"):
        reader.load_blobs(model.config, {model.config.blobs[0].digest: pipe})
    with pytest.raises(DamagedBlob, match="not a regular file"):
        reader.read_config(pipe)


def test_a_config_that_is_too_large_is_not_read(sink: DirectorySink) -> None:
    path = sink.directory / "large"
    path.touch()
    os.truncate(path, (64 << 20) + 1)
    with pytest.raises(InvalidFtw, match="larger than"):
        reader.read_config(path)


@pytest.mark.parametrize("records_per_blob", [1, 2, 5, 6])
def test_banks_hold_every_expert_whatever_the_cut_of_the_files(
    sink: DirectorySink, records_per_blob: int
) -> None:
    rows = {
        (layer, number): np.full((2, 3), 10 * layer + number, np.float32)
        for layer in (0, 2)
        for number in range(3)
    }
    with FtwWriter(sink, expert_blob_bytes=records_per_blob * 8192) as writer:
        writer.add_matrix("w", QuantMatrix("f32", (1, 1), (np.ones((1, 1), np.float32),)))
        tensors = (("up", "f32", (2, 3)), ("down", "f32", (2, 3)))
        writer.begin_experts(3, [0, 2], [tensors, tensors])
        for values in rows.values():
            up = QuantMatrix("f32", (2, 3), (values,))
            writer.add_expert({"up": up, "down": QuantMatrix("f32", (2, 3), (-values,))})
        written = writer.finish(DRAFT)
    config = written.config
    blobs = reader.load_blobs(
        config, {blob.digest: sink.path(blob.digest) for blob in config.blobs}, verify=True
    )
    banks = reader.expert_banks(config, blobs)
    assert banks.keys() == {0, 2}
    for (layer, number), values in rows.items():
        bank = banks[layer]
        assert (bank.layer, bank.num_experts, bank.record_bytes) == (layer, 3, 8192)
        np.testing.assert_array_equal(bank.matrix("up", number).planes[0], values)
        np.testing.assert_array_equal(bank.matrix("down", number).planes[0], -values)
    assert bank.records.flags.c_contiguous
    assert reader.tensors(config, blobs)["w"].planes[0].tolist() == [[1.0]]
