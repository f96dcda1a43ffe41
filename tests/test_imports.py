"""What the light parts may import, proven in fresh interpreters: no torch, nothing heavy for a quick verb."""

import subprocess
import sys

import pytest
from examples import first_quick

LIGHT = [
    "ftd.daemon.serve",
    "ftd.daemon.app",
    "ftd.cli.main",
    "ftd.daemon.create",
    "ftd.registry.server",
    "ftd.registry.client",
    "ftd.api.ollama",
    "ftd.api.openai",
    "ftd.chat.templates",
    "ftd.ftw.import_gguf",
    "ftd.engine.worker",
    "ftd.engine.bench",
]


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running ``code``."""
    program = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("module", first_quick(*LIGHT))
def test_importing_a_part_brings_no_torch(module: str) -> None:
    assert modules_after(f"import {module}").isdisjoint({"torch", "triton", "transformers"})


def test_the_entry_point_brings_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "aiohttp", "jinja2", "tokenizers", "prompt_toolkit", "msgspec"}
    assert modules_after("import ftd.cli.main").isdisjoint(heavy)
