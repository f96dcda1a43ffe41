"""A daemon for all tests of a module, the control line to scripted engines on either loop, an empty store."""

import hashlib

import pytest
import pytest_asyncio
from fake_engine import controlling
from live_daemon import running

from ftd.chat.renderer import Renderer
from ftd.registry.store import Store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory):
    """One daemon for tests that only read from it; they load models, but leave nothing to the next."""
    async with running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
async def control(tmp_path):
    """A Control on the loop of the test."""
    async with controlling(tmp_path) as control:
        yield control


@pytest_asyncio.fixture(loop_scope="module")
async def module_control(tmp_path):
    """A Control on the loop of the module, for tests that run there beside ``daemon``."""
    async with controlling(tmp_path) as control:
        yield control


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer():
    """A render worker for all tests of a module."""
    async with Renderer() as renderer:
        yield renderer


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    return Store(tmp_path)


@pytest.fixture
def nothing_unfinished(store):
    """No test leaves a half-written blob behind, and every blob has its digest."""
    yield
    for path in store.blobs.folder.iterdir():
        assert path.name == "sha256-" + hashlib.sha256(path.read_bytes()).hexdigest()
