"""The control line to scripted engines, and a daemon with a real model for the slow tests."""

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest_asyncio
from fake_engine import controlling
from live_daemon import running

from ftd.daemon.runner import WORKER_COMMAND

sys.path.insert(0, str(Path(__file__).parent))


@pytest_asyncio.fixture
async def control(tmp_path):
    """A Control on the loop of the test."""
    async with controlling(tmp_path) as control:
        yield control


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol_daemon(tmp_path_factory, smollm2_gguf):
    """A daemon with the real engine; SmolLM2, created from its file alone, is called ``smol``."""
    async with running(tmp_path_factory.mktemp("daemon"), WORKER_COMMAND, models=()) as daemon:
        data = await asyncio.to_thread(smollm2_gguf.read_bytes)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with smollm2_gguf.open("rb") as file:
            assert (await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=file)).status == 201
        await daemon.json("/api/create", {"model": "smol", "files": {"m.gguf": digest}, "stream": False})
        yield daemon
