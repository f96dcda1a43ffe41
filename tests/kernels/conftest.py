"""Fixtures of the kernel tests: every implementation of an op, pools of several sizes, one comparer."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import quick_interpreter  # noqa: F401  makes Triton's interpreter quick
import torch
from numpy.typing import NDArray

from ftd.kernels import cpu, interpreter  # noqa: F401  the repairs, whatever a test imports
from ftd.kernels._pool import Pool, set_isa

# Instruction sets of this machine; test_cpu.py says which of all have no tests here
LEVELS = cpu.ISA_LEVELS[: cpu.ISA_LEVELS.index(cpu.detected_isa()) + 1]

# Largest error relative to the largest value of the expected array, for float32 results of ...
TOLERANCE = {
    "copy": 0.0,  # moving values
    "elementwise": 3e-7,  # a few roundings
    "sum": 2e-6,  # a sum of some hundred products
    "softmax": 4e-6,  # sums of products, an exponential, and sums again
}

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[[NDArray[Any], NDArray[Any], str], None]


def compare(actual: NDArray[Any], expected: NDArray[Any], kind: str) -> None:
    """Fail unless shapes agree and the largest difference is within the tolerance of ``kind``."""
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    if not expected.size:
        return
    assert np.isfinite(actual).all()
    worst = np.abs(actual.astype(np.float64) - expected).max()
    assert worst <= TOLERANCE[kind] * max(1e-30, float(np.abs(expected).max())), f"worst error {worst}"


@pytest.fixture
def assert_close() -> AssertClose:
    """The comparer of all kernel tests: ``compare``."""
    return compare


@pytest.fixture(params=LEVELS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Put each instruction set in force that the machine has."""
    before = set_isa(request.param)
    yield request.param
    set_isa(before)


@pytest.fixture(params=("reference", *LEVELS))
def get(request: pytest.FixtureRequest) -> Iterator[Get]:
    """Return a function that gives an op's reference, or its compiled version under each instruction set."""
    which = str(request.param)
    if which == "reference":
        yield lambda op: getattr(importlib.import_module(f"ftd.kernels.{op}_ref"), op)
        return
    before = set_isa(which)
    yield lambda op: getattr(importlib.import_module(f"ftd.kernels._{op}_cy"), op)
    set_isa(before)


@pytest.fixture(scope="session")
def pools() -> Iterator[tuple[Pool | None, ...]]:
    """Pools of 1 (the calling thread alone), 2, 3 and 5 threads."""
    made = [Pool(count) for count in (2, 3, 5)]
    yield (None, *made)
    for pool in made:
        pool.close()


@pytest.fixture
def device() -> str:
    """Where Triton's kernels run: on the card, or without one on the CPU in Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in each run."""
    return np.random.default_rng(20240229)
