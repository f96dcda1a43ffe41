"""Reads a model's blobs into memory and hands its tensors out by name, checking presence and shape of each.

Weights are views into the blobs' memory: nothing is copied or repacked after reading.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ftd import log
from ftd.engine.graphs import Floats
from ftd.errors import InvalidFtw
from ftd.ftw import reader
from ftd.ftw.format import FtwConfig
from ftd.kernels import dispatch
from ftd.kernels.quant import QuantMatrix

logger = logging.getLogger(__name__)


class Weights:
    """The tensors of one model; remembers which were asked for."""

    def __init__(self, tensors: Mapping[str, QuantMatrix]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def matrix(self, name: str, rows: int, columns: int) -> QuantMatrix:
        """Return tensor ``name`` [rows, columns]; InvalidFtw if it is missing or shaped otherwise."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InvalidFtw(f"the model has no tensor {name}")
        if tensor.shape != (rows, columns):
            raise InvalidFtw(f"tensor {name} must be {[rows, columns]}: {list(tensor.shape)}")
        self.used.add(name)
        return tensor

    def vector(self, name: str, size: int) -> Floats:
        """Return tensor ``name`` as [size] f32; InvalidFtw if it is missing or shaped otherwise."""
        tensor = self.matrix(name, 1, size)
        return np.ascontiguousarray(dispatch.get("dequantize")(tensor)[0], dtype=np.float32)

    def unused(self) -> list[str]:
        """Return the names of tensors that nobody asked for."""
        return sorted(set(self.tensors) - self.used)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model's config, its weights, and what reading them took."""

    config: FtwConfig
    weights: Weights
    read_bytes: int
    read_ns: int


def load(config_path: Path, blob_paths: Mapping[str, Path], progress: Callable[[int, int], None]) -> Loaded:
    """Read the model whose FTW config lies at ``config_path``; ``progress(completed_bytes, total_bytes)``.

    Raises InvalidFtw or DamagedBlob when what lies on disk is not what the config says.
    """
    started = time.monotonic_ns()
    config = reader.read_config(config_path)
    blobs = reader.load_blobs(config, dict(blob_paths), progress)
    weights = Weights(reader.tensors(config, blobs))
    return Loaded(config, weights, sum(blob.nbytes for blob in blobs), time.monotonic_ns() - started)


def warn_unused(weights: Weights) -> None:
    """Log once that the model has tensors which its family does not use."""
    if names := weights.unused():
        logger.warning(log.fields("unused tensors", num=len(names), first=names[0]))
