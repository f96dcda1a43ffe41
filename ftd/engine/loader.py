"""Where weights come from: a model's blobs, read into memory. Weights are views, never copied or repacked."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from ftd.engine.weights import Weights
from ftd.errors import InvalidFtw
from ftd.ftw import reader
from ftd.ftw.format import FtwConfig
from ftd.ftw.mapping import MappedBlobs
from ftd.kernels.quant import BankMatrix, ExpertBank

Progress = Callable[[int, int], None]


class Loaded(msgspec.Struct, frozen=True):
    """A model's weights, and what reading them took."""

    weights: Weights
    read_bytes: int
    read_ns: int


class Source(Protocol):
    """A model that can be loaded: what it is, and its weights on demand."""

    config: FtwConfig

    def outline(self) -> Weights:
        """Return weights to look at their shapes and small values; large ones are not read."""
        ...

    def read(self, progress: Progress) -> Loaded:
        """Return the weights; ``progress(completed_bytes, total_bytes)`` may raise to stop."""
        ...


class Files:
    """A model of the store: an FTW config and the file of each blob that it names, by digest."""

    def __init__(self, config_path: Path, blob_paths: Mapping[str, Path]) -> None:
        self.config = reader.read_config(config_path)
        self._blob_paths = blob_paths

    def outline(self) -> Weights:
        """Return weights as mappings of the files. Raises InvalidFtw, BlobNotFound or DamagedBlob."""
        return mapped_weights(self.config, MappedBlobs(self.config, self._blob_paths, hold_experts=False))

    @property
    def blob_paths(self) -> Mapping[str, Path]:
        """The file of each blob, by digest."""
        return self._blob_paths

    def read(self, progress: Progress) -> Loaded:
        """Read every blob. Raises InvalidFtw or DamagedBlob when the disk holds something else."""
        return read_weights(self.config, self._blob_paths, progress)


def read_weights(config: FtwConfig, blob_paths: Mapping[str, Path], progress: Progress) -> Loaded:
    """Read every blob that ``config`` names; ``progress(completed_bytes, total_bytes)`` may raise to stop.

    Raises InvalidFtw or DamagedBlob when what lies on disk is not what the config says.
    """
    started = time.monotonic_ns()
    for blob in config.blobs:
        if blob.digest not in blob_paths:
            raise InvalidFtw(f"the model's blob has no file: {blob.digest}")
    blobs = reader.load_blobs(config, dict(blob_paths), progress)
    banks = [expert_bank(bank) for bank in reader.expert_banks(config, blobs).values()]
    weights = Weights(reader.tensors(config, blobs), banks)
    return Loaded(weights, sum(blob.nbytes for blob in blobs), time.monotonic_ns() - started)


def mapped_weights(config: FtwConfig, blobs: MappedBlobs) -> Weights:
    """Return weights that are views of ``blobs``."""
    banks = reader.expert_banks(config, blobs.arrays).values()
    return Weights(reader.tensors(config, blobs.arrays), [expert_bank(bank) for bank in banks])


def expert_bank(bank: reader.ExpertBank) -> ExpertBank:
    """Return a bank as kernels see it: the same records, offsets instead of the file's entries."""
    matrices = {
        role: BankMatrix(
            bank.records, entry.format, entry.shape, tuple(plane.offset for plane in entry.planes)
        )
        for role, entry in bank.layout.items()
    }
    return ExpertBank(bank.layer, bank.records, matrices)
