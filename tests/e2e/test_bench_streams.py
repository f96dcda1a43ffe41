"""The benchmark of many streams runs and reports its numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench-streams"


@pytest.mark.slow
def test_smoke(tmp_path, smollm2_gguf):
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, SCRIPT, smollm2_gguf, "--smoke", "--json", numbers]
    subprocess.run(command, check=True, timeout=250)
    assert json.loads(numbers.read_text())["first_p95_s"] > 0
