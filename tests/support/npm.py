"""Packages of npm for tests, installed once into ``.cache`` and kept; without them a test is skipped."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache"


def installed(folder_name, *specs):
    """Return the folder in whose ``node_modules`` these packages (``name@version``) are."""
    return install(CACHE / folder_name, specs)


def install(folder, specs, wait_s=90):
    """Put packages into a folder that has none but a part of them; return the folder."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is not installed")
    stamp = folder / "installed"
    have = stamp.read_text().split() if stamp.exists() else []
    if all(spec in have for spec in specs):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *specs]
    path = f"{folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=wait_s,
            check=False,
            env={**os.environ, "PATH": path},
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not answer in {wait_s} s")
    if done.returncode:
        pytest.skip(f"npm could not install {' '.join(specs)}: {done.stderr[-200:]}")
    stamp.write_text(" ".join(specs))
    return folder


async def run_script(folder, source, *arguments, **environment):
    """Run a script, which may import its neighbours, with the packages in ``folder``; returns its output.

    The last line must be ``ok``.
    """
    for file in source.parent.glob("*.mjs"):
        shutil.copyfile(file, folder / file.name)
    process = await asyncio.create_subprocess_exec(
        *("node", str(folder / source.name), *arguments),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0 and text.rstrip().splitlines()[-1:] == ["ok"], text
    return text
