"""Fixtures for every test: a scrubbed environment, a home of its own, the folder of real models."""

import gc
import itertools
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import examples
import pytest

# Without a card Triton's kernels run in its interpreter; Triton decides when it is imported. torch's threads
# spin beside those of another worker: test_hybrid took 20 to 50 s of processor time with two, 10 with one.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start hundreds of Python processes: what one compiled the next need not, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with interrupts ignored and children inherit that; tests of Ctrl-C need them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_MEMORY = Path("/dev/shm")


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests are left out, try properties on fewer examples, and write to memory."""
    is_quick = "not slow" in config.option.markexpr
    examples.use("quick" if is_quick else "all")
    # Thousands of small files are forced to disk, which takes a tenth of all time; scripts/test does it
    if is_quick and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= 2 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    gc.disable()  # what is imported to collect tests stays: a million objects, looked at again and again


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, not in what they import; take logs at their root."""
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            # Not so torch's 42: pytest gives each a handler six times a test, half the time of a small one
            logger.propagate = True
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New paths of home folders; who needs one makes it: to make thousands takes seconds."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def scrubbed_environment(monkeypatch: pytest.MonkeyPatch, homes: Iterator[Path]) -> None:
    """No setting of the developer's shell reaches a test, and nothing a test does reaches the home folder."""
    for variable in list(os.environ):
        kept = variable in ("FTD_TEST_MODELS", "FTD_ISA", "FTD_KERNELS")
        if variable.startswith(("FTD_", "OLLAMA_")) and not kept:
            monkeypatch.delenv(variable)
    home = next(homes)
    for variable in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(home))
    for variable in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of real models, filled by scripts/test; tests that need it are skipped without it."""
    folder = os.environ.get("FTD_TEST_MODELS")
    if not folder:
        pytest.skip("FTD_TEST_MODELS is not set: scripts/test fetches the real models")
    return Path(folder)


@pytest.fixture(scope="session")
def real_model(models_dir: Path) -> Callable[[str], Path]:
    """Return the path of a real model by its name; skips where it is not there."""

    def find(name: str) -> Path:
        path = models_dir / name
        if not path.exists():
            pytest.skip(f"no such model: {path}")
        return path

    return find


@pytest.fixture(scope="session")
def smollm2_gguf(real_model: Callable[[str], Path]) -> Path:
    """SmolLM2-135M-Instruct, Q4_1, as published."""
    return real_model("smollm2.gguf")
