"""The ollama package of npm, unmodified, against a live daemon; skipped where there is no node or no npm."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from live_daemon import registry, running

SCRIPT = Path(__file__).with_name("client.mjs")
PACKAGE = "ollama@0.6.4"


@pytest.fixture(scope="module")
def packages():
    """The folder with node_modules; filled once and kept."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is not installed")
    folder = Path(__file__).parents[2] / ".cache" / "e2e-js"
    if not (folder / "node_modules" / "ollama").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not answer in 90 s")
        if done.returncode:
            pytest.skip(f"npm could not install {PACKAGE}: {done.stderr[-200:]}")
    return folder


async def test_ollama_js(tmp_path, packages):
    script = packages / "client.mjs"
    shutil.copyfile(SCRIPT, script)
    async with running(tmp_path) as daemon, registry(tmp_path, models=("remote",)) as host:
        process = await asyncio.create_subprocess_exec(
            *("node", str(script), daemon.url, host), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert (process.returncode, output.decode().strip()) == (0, "ok"), output.decode()
