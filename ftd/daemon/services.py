"""What routes work with, made once per application and closed in order at its end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aiohttp import web

from ftd.api.kept_items import KeptItems
from ftd.config import Config
from ftd.daemon.catalog import Catalog, Summaries
from ftd.daemon.completion import Completions
from ftd.daemon.manager import ModelManager
from ftd.daemon.metrics import Metrics
from ftd.daemon.spawn import WORKER_COMMAND
from ftd.daemon.transfers import Transfers
from ftd.registry.store import Store

if TYPE_CHECKING:
    from ftd.registry.client import RegistryClient

# Ollama's version whose API is spoken; clients compare it (0.13.4 is the least that Codex takes).
OLLAMA_VERSION = "0.13.5"


class Services:
    """The rooms of the daemon. ``start`` and ``close`` run on the event loop that serves requests."""

    def __init__(self, config: Config, store: Store, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
        self.config = config
        self.store = store
        self.catalog = Catalog(store)
        self.summaries = Summaries(store)
        self.manager = ModelManager(config, worker_command)
        self.metrics = Metrics()
        self.completions = Completions(self.catalog, self.manager, self.metrics)
        self.kept_items = KeptItems()
        self.transfers = Transfers()

    @cached_property
    def registry(self) -> RegistryClient:
        """The one client of registries."""
        from ftd.registry.client import RegistryClient  # a daemon starts without it

        return RegistryClient(self.store, self.config.registry)

    async def start(self) -> None:
        """Begin to work."""
        await self.manager.start()

    async def close(self) -> None:
        """End the engine and the template worker."""
        await self.manager.close()
        await self.catalog.close()


SERVICES = web.AppKey("services", Services)
