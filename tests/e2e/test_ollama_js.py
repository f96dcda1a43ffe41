"""The ollama package of npm, unmodified, against a live daemon; skipped where there is no node or no npm."""

from pathlib import Path

import npm
import pytest
from live_daemon import registry, running

SCRIPT = Path(__file__).with_name("client.mjs")


@pytest.fixture(scope="module")
def packages():
    return npm.installed("e2e-js", "ollama@0.6.4")


@pytest.mark.slow
async def test_ollama_js(tmp_path, packages):
    async with running(tmp_path) as daemon, registry(tmp_path, models=("remote",)) as host:
        await npm.run_script(packages, SCRIPT, daemon.url, host)
