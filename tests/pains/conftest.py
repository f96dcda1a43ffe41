"""The control line to scripted engines, and a daemon with a real model for the slow tests."""

import sys
from pathlib import Path

import pytest_asyncio
from fake_engine import controlling
from live_daemon import running_real

sys.path.insert(0, str(Path(__file__).parent))


@pytest_asyncio.fixture
async def control(tmp_path):
    """A Control on the loop of the test."""
    async with controlling(tmp_path) as control:
        yield control


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol_daemon(tmp_path_factory, smollm2_gguf):
    """A daemon with the real engine; SmolLM2, created from its file alone, is called ``smol``."""
    async with running_real(tmp_path_factory.mktemp("daemon"), smollm2_gguf) as daemon:
        yield daemon
