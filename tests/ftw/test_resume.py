"""Conversions killed at every step and begun again: the same blobs, and nothing read that was written."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ftw_draft import draft
from numpy.typing import NDArray

from ftd.ftw.writer import FtwWriter, WrittenModel
from ftd.kernels.quant import QuantMatrix
from ftd.registry.blobs import BlobStore

CHUNK_BYTES = 8192
RECORD_BYTES = 4096 * 2
E, LAYERS = 5, [1, 3]
DRAFT = draft()


def values(seed: int, shape: tuple[int, int]) -> QuantMatrix:
    return QuantMatrix("f32", shape, (np.random.default_rng(seed).normal(size=shape).astype("<f4"),))


class Conversion:
    """Writes the same model each time, lists what it made, and copies the store after ``kill`` steps."""

    def __init__(
        self, store: BlobStore, kill: int = 1000, copy: Path | None = None, key: str | None = "k"
    ) -> None:
        self.store, self.kill, self.copy, self.key = store, kill, copy, key
        self.made: list[str] = []

    def step(self, name: str) -> None:
        if len(self.made) == self.kill and self.copy is not None:
            shutil.copytree(self.store.folder, self.copy)
        self.made.append(name)

    def slabs(self, name: str, matrix: QuantMatrix) -> Iterator[NDArray[np.generic]]:
        self.step(name)
        yield from np.array_split(matrix.planes[0], 3)

    def run(self) -> WrittenModel:
        with FtwWriter(self.store, CHUNK_BYTES, 3 * RECORD_BYTES, self.key) as writer:
            for index, shape in enumerate(((7, 700), (1, 5), (3, 1200))):
                matrix = values(index, shape)
                writer.add(f"t{index}", "f32", shape, [self.slabs(f"t{index}", matrix)])
            writer.begin_experts(
                E, LAYERS, [[("gate", "f32", (1, 900)), ("up", "f32", (1, 900))]] * len(LAYERS)
            )
            for number in range(E * len(LAYERS)):
                if writer.has_expert(number):
                    writer.add_expert(None)
                    continue
                self.step(f"e{number}")
                parts = {"gate": values(100 + number, (1, 900)), "up": values(200 + number, (1, 900))}
                writer.add_expert(parts)
            return writer.finish(DRAFT)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> WrittenModel:
    """What a conversion without a key writes."""
    return Conversion(BlobStore(tmp_path_factory.mktemp("plain")), key=None).run()


@pytest.mark.parametrize("kill", range(13))
def test_a_killed_conversion_goes_on_where_it_was(kill: int, wanted: WrittenModel, tmp_path: Path) -> None:
    first = Conversion(BlobStore(tmp_path / "alive"), kill, tmp_path / "killed")
    assert first.run() == wanted
    assert [path.name for path in (tmp_path / "alive").iterdir() if path.name.startswith("staged")] == []
    store = BlobStore(tmp_path / "killed")
    second = Conversion(store)
    assert second.run() == wanted
    assert sorted(store.digests()) == sorted(
        [wanted.config_blob.digest, *(blob.digest for blob in wanted.weights)]
    )
    assert len(list(store.folder.iterdir())) == len(wanted.weights) + 1
    # A chunk holds one record, so all records but those of the unfinished chunk are there.
    assert len(second.made) <= len(first.made) - max(kill - 3, 0)
    assert set(second.made) >= set(first.made[kill:])


def test_another_key_begins_anew(wanted: WrittenModel, tmp_path: Path) -> None:
    Conversion(BlobStore(tmp_path / "alive"), 10, tmp_path / "killed").run()
    other = Conversion(BlobStore(tmp_path / "killed"), key="other")
    assert other.run() == wanted and len(other.made) == 13


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(RuntimeError), FtwWriter(store, CHUNK_BYTES, key="k") as writer:
        writer.add_matrix("t", values(0, (40, 700)))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
