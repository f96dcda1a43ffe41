"""Packages of npm for tests, installed once into ``.cache`` and kept; without them a test is skipped."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache"
INSTALL_S = 90


def installed(folder_name, *specs):
    """Return the folder in whose ``node_modules`` these packages (``name@version``) are."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is not installed")
    folder = CACHE / folder_name
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == " ".join(specs):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *specs]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not answer in {INSTALL_S} s")
    if done.returncode:
        pytest.skip(f"npm could not install {' '.join(specs)}: {done.stderr[-200:]}")
    stamp.write_text(" ".join(specs))
    return folder


async def run_script(folder, source, *arguments):
    """Run a script with the packages of ``folder``; it must print ``ok`` as its last line."""
    script = folder / source.name
    shutil.copyfile(source, script)
    process = await asyncio.create_subprocess_exec(
        *("node", str(script), *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0 and text.rstrip().splitlines()[-1:] == ["ok"], text
