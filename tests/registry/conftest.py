"""Stores, a faulty registry, clients that do not wait long, and real servers of our own registry."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_registry import FaultyRegistry

from ftd.config import RegistryConfig
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.server import make_app
from ftd.registry.store import Store

KIB = 1024
QUICK = Limits(
    connect_s=5.0,
    stall_s=20.0,
    attempts=3,
    backoff_s=0.0,
    stream_bytes=64 * KIB,
    part_bytes=64 * KIB,
    min_part_bytes=16 * KIB,
    upload_part_bytes=100_000,
    progress_s=0.005,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "models")


@pytest.fixture
def payload() -> bytes:
    """1 MiB and a bit that no byte pattern repeats in, the same in every run."""
    return random.Random(7).randbytes(1024 * KIB + 17)


@pytest.fixture
async def registry() -> AsyncIterator[FaultyRegistry]:
    """A running registry with chosen faults."""
    registry = FaultyRegistry()
    await registry.start()
    yield registry
    await registry.stop()


@pytest.fixture
def make_client(tmp_path: Path) -> Callable[..., RegistryClient]:
    """Return a function that makes a client of a store with quick limits."""

    def make(store: Store, limits: Limits = QUICK, **config: Any) -> RegistryClient:
        registry_config = RegistryConfig(models_dir=store.models_dir, **config)
        return RegistryClient(store, registry_config, key_dir=tmp_path / "keys", limits=limits)

    return make


@pytest.fixture
def pull(make_client: Callable[..., RegistryClient]) -> Callable[..., Any]:
    """Return a function that pulls as a caller on this machine and returns the status objects."""

    async def pull(store: Store, name: ModelName, **options: Any) -> list[dict[str, Any]]:
        client = make_client(store, **options)
        return [line async for line in client.pull(name, insecure=True, allow_loopback=True)]

    return pull


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Store, int]]:
    """Our own registry over an empty store, on a free port."""
    store = Store(tmp_path / "served")
    runner = web.AppRunner(make_app(store), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield store, runner.addresses[0][1]
    await runner.cleanup()
