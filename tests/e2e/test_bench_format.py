"""The benchmark of constrained decoding runs, checks its texts and reports every kind of run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench-format"


@pytest.mark.slow
def test_smoke(tmp_path, smollm2_gguf):
    rows = tmp_path / "rows.json"
    command = [sys.executable, SCRIPT, smollm2_gguf, "--smoke", "--sequences", "2", "--json", rows]
    subprocess.run(command, check=True, timeout=250)
    assert json.loads(rows.read_text())["medians"].keys() == {"free", "first", "again"}
