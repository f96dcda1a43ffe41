"""Fixtures of the FTW tests: a directory that blobs go to, files from bytes, real models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ftd.ftw.sink import DirectorySink


@pytest.fixture
def sink(tmp_path: Path) -> DirectorySink:
    """An empty directory of blobs."""
    folder = tmp_path / "blobs"
    folder.mkdir()
    return DirectorySink(folder)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Write bytes to a named file and return its path."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def gemma3_gguf(real_model: Callable[[str], Path]) -> Path:
    """Gemma 3 270M, Q4_K_M: K-quants, norms on heads, a SentencePiece vocabulary."""
    return real_model("gemma3.gguf")
