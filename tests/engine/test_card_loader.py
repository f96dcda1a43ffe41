"""Files on their way to a card, whose part torch's processor plays: bytes against what was written.

Runs are small here, so that tensors span several and several lie in one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="cards need torch")

from ftd.engine import card_loader
from ftd.engine.card_loader import CardFiles
from ftd.errors import DamagedBlob, InvalidFtw
from ftd.ftw import direct
from ftd.ftw.format import FtwConfig
from ftd.kernels.device_weights import DeviceWeights
from ftd.kernels.upload_ring import UploadRing
from tests.engine import tiny
from tests.engine.serving import read_back


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 8 KiB at a time."""
    monkeypatch.setattr(card_loader, "READ_BYTES", 8192)


@pytest.fixture(scope="module")
def oracle() -> tiny.Tiny:
    """A random model with experts."""
    return tiny.make("mixtral")


@pytest.fixture
def written(oracle: tiny.Tiny, tmp_path: Path) -> tuple[FtwConfig, dict[str, Path]]:
    """Its config as read from disk, and its blobs."""
    return read_back(oracle, tmp_path)


def ring() -> UploadRing:
    """A ring of few small buffers."""
    return UploadRing("cpu", 8192, 3)


def begin(written: tuple[FtwConfig, dict[str, Path]], progress: Any = None, **options: bool) -> CardFiles:
    """Return the files of a model on their way."""
    return CardFiles(*written, ring, progress or (lambda done, total: None), **options)


def test_tensors_reach_the_card_stacked_and_alone(
    written: tuple[FtwConfig, dict[str, Path]], oracle: tiny.Tiny
) -> None:
    calls: list[tuple[int, int]] = []
    files = begin(written, lambda done, total: calls.append((done, total)), hold_experts=False)
    store = DeviceWeights("cpu", files, 1 << 20, 0)
    prefix = "model.layers.0.self_attn."
    parts = [files.weights.tensors[f"{prefix}{part}_proj.weight"] for part in "qkv"]
    stacked = store.matrix(parts)
    alone = store.matrix([files.weights.tensors["model.embed_tokens.weight"]])
    assert store.matrix([files.weights.tensors["model.embed_tokens.weight"]]) is alone
    store.finish()
    wanted = np.concatenate([oracle.tensors[f"{prefix}{part}_proj.weight"].planes[0] for part in "qkv"])
    np.testing.assert_array_equal(stacked.planes[0][0].numpy(), wanted)
    embedding = oracle.tensors["model.embed_tokens.weight"].planes[0]
    np.testing.assert_array_equal(alone.planes[0][0].numpy(), embedding)
    total = sum(blob.size for blob in written[0].blobs)
    assert calls[-1] == (total, total) == (files.read[0], total) and files.read[1] > 0
    files.close()


def test_vectors_are_there_before_anything_is_read(
    written: tuple[FtwConfig, dict[str, Path]], oracle: tiny.Tiny
) -> None:
    files = begin(written, hold_experts=False)
    values = files.weights.vector("model.norm.weight", 64)
    np.testing.assert_array_equal(values, oracle.tensors["model.norm.weight"].planes[0][0])
    files.close()


def test_all_experts_reach_the_card(written: tuple[FtwConfig, dict[str, Path]], oracle: tiny.Tiny) -> None:
    files = begin(written, hold_experts=False)
    store = DeviceWeights("cpu", files, 0, 1 << 20)
    placed = [store.bank(files.weights.bank(layer, 4, 64, 96)) for layer in range(3)]
    store.finish()
    for bank, found in zip(oracle.banks, placed, strict=True):
        for role, matrix in bank.matrices.items():
            for expert in range(4):
                np.testing.assert_array_equal(
                    found.matrices[role].planes[0][expert].numpy(), matrix.expert(expert).planes[0]
                )
    files.close()


def test_experts_that_the_host_holds_are_there_when_they_are_asked_for(
    written: tuple[FtwConfig, dict[str, Path]], oracle: tiny.Tiny
) -> None:
    calls: list[int] = []
    files = begin(written, lambda done, total: calls.append(done), hold_experts=True)
    for bank in oracle.banks:
        read = files.weights.bank(bank.layer, 4, 64, 96)
        for role, matrix in bank.matrices.items():
            np.testing.assert_array_equal(read.matrices[role].expert(3).planes[0], matrix.expert(3).planes[0])
    files.finish()
    assert calls == sorted(calls) and calls[-1] == files.read[0]
    with pytest.raises(InvalidFtw, match="layer 1 must have 8 experts: 4"):
        files.weights.bank(1, 8, 64, 96)
    files.close()


def test_what_lies_in_no_file_is_copied_at_once(written: tuple[FtwConfig, dict[str, Path]]) -> None:
    files = begin(written, hold_experts=False)
    store = DeviceWeights("cpu", files, 1 << 20, 0)
    other = tiny.make("llama").tensors["model.embed_tokens.weight"]
    placed = store.matrix([other])
    np.testing.assert_array_equal(placed.planes[0][0].numpy(), other.planes[0])
    files.close()


def test_a_read_that_fails_is_raised_where_the_bytes_are_needed(
    written: tuple[FtwConfig, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, target: memoryview, start: int, name: str) -> None:
        raise DamagedBlob(f"cannot read {name}")

    monkeypatch.setattr(direct, "read_run", fail)
    files = begin(written, hold_experts=True)
    with pytest.raises(DamagedBlob, match="cannot read"):
        files.weights.bank(0, 4, 64, 96)
    store = DeviceWeights("cpu", files, 1 << 20, 0)
    store.matrix([files.weights.tensors["model.embed_tokens.weight"]])
    with pytest.raises(DamagedBlob, match="cannot read"):
        store.finish()
    files.close()


@pytest.mark.parametrize("hold_experts", [False, True])
def test_progress_may_stop_the_load(written: tuple[FtwConfig, dict[str, Path]], hold_experts: bool) -> None:
    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    files = begin(written, stop, hold_experts=hold_experts)
    store = DeviceWeights("cpu", files, 1 << 20, 0)
    store.matrix([files.weights.tensors["model.embed_tokens.weight"]])
    with pytest.raises(Stopped):
        store.finish()
    files.close()


def test_files_of_another_size_are_refused(written: tuple[FtwConfig, dict[str, Path]]) -> None:
    for path in written[1].values():
        path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(DamagedBlob, match="instead of"):
        begin(written, hold_experts=False)
