"""Reading a written model back: bytes against what was written, refusals against files that were changed."""

from pathlib import Path

import numpy as np
import pytest

from ftd.engine import loader
from ftd.errors import BlobNotFound, DamagedBlob, InvalidFtw
from ftd.ftw.format import FtwConfig
from tests.engine import tiny
from tests.engine.serving import read_back


@pytest.fixture(scope="module")
def oracle() -> tiny.Tiny:
    """The random model."""
    return tiny.make("llama")


@pytest.fixture
def written(oracle: tiny.Tiny, tmp_path: Path) -> tuple[FtwConfig, dict[str, Path]]:
    """Its config as read from disk, and its blobs."""
    return read_back(oracle, tmp_path)


def test_weights_are_what_was_written(written: tuple[FtwConfig, dict[str, Path]], oracle: tiny.Tiny) -> None:
    calls: list[tuple[int, int]] = []
    loaded = loader.read_weights(*written, lambda done, total: calls.append((done, total)))
    assert set(loaded.weights.tensors) == set(oracle.tensors)
    for name, tensor in oracle.tensors.items():
        np.testing.assert_array_equal(loaded.weights.tensors[name].planes[0], tensor.planes[0])
    assert loaded.read_bytes == sum(path.stat().st_size for path in written[1].values())
    assert calls[-1] == (loaded.read_bytes, loaded.read_bytes) and loaded.read_ns > 0


def test_banks_are_what_was_written(tmp_path: Path) -> None:
    oracle = tiny.make("mixtral")
    weights = loader.read_weights(*read_back(oracle, tmp_path), lambda done, total: None).weights
    assert sorted(weights.banks) == [0, 1, 2]
    for bank in oracle.banks:
        read = weights.bank(bank.layer, 4, 64, 96)
        for role, matrix in bank.matrices.items():
            for expert in range(4):
                np.testing.assert_array_equal(
                    read.matrices[role].expert(expert).planes[0], matrix.expert(expert).planes[0]
                )
    with pytest.raises(InvalidFtw, match="layer 1 must have 8 experts: 4"):
        weights.bank(1, 8, 64, 96)
    with pytest.raises(InvalidFtw, match=r"layer 1 must be \[64, 32\]: \[64, 96\]"):
        weights.bank(1, 4, 64, 32)
    with pytest.raises(InvalidFtw, match="no experts of layer 3"):
        weights.bank(3, 4, 64, 96)


def test_a_blob_without_a_file_is_named(written: tuple[FtwConfig, dict[str, Path]]) -> None:
    config, paths = written
    with pytest.raises(InvalidFtw, match=config.blobs[0].digest):
        loader.read_weights(config, {}, lambda done, total: None)
    for path in paths.values():
        path.unlink()
    with pytest.raises(BlobNotFound):
        loader.read_weights(config, paths, lambda done, total: None)


def test_a_truncated_blob_is_refused(written: tuple[FtwConfig, dict[str, Path]]) -> None:
    config, paths = written
    for path in paths.values():
        path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(DamagedBlob):
        loader.read_weights(config, paths, lambda done, total: None)


def test_progress_may_stop_the_load(written: tuple[FtwConfig, dict[str, Path]]) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        loader.read_weights(*written, stop)
