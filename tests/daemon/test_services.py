"""What routes work with: made once, closed in order."""

import pytest

from ftd import config
from ftd.daemon.services import OLLAMA_VERSION, Services
from ftd.registry.store import Store


@pytest.fixture
def services(tmp_path):
    return Services(config.load(environ={}), Store(tmp_path / "models"))


def test_clients_that_compare_versions_find_one_that_is_new_enough():
    """Codex takes 0.13.4 and later, and reads three numbers."""
    assert tuple(map(int, OLLAMA_VERSION.split("."))) >= (0, 13, 4)


def test_everybody_gets_the_same_registry_client(services):
    assert "registry" not in vars(services)
    assert services.registry is services.registry


async def test_the_engine_ends_before_what_renders_its_prompts(services, monkeypatch):
    ended = []

    async def ends(name):
        ended.append(name)

    monkeypatch.setattr(services.manager, "close", lambda: ends("manager"))
    monkeypatch.setattr(services.catalog, "close", lambda: ends("catalog"))
    await services.close()
    assert ended == ["manager", "catalog"]


async def test_they_can_be_closed_though_nobody_used_them(services):
    await services.start()
    await services.close()
