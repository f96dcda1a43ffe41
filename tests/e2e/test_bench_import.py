"""The benchmark of imports runs, checks its blobs and reports every kind of source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench-import"


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    command = [sys.executable, SCRIPT, "gguf", "--smoke", "--folder", tmp_path, "--json", rows]
    subprocess.run(command, check=True, timeout=250, capture_output=True)
    found = json.loads(rows.read_text())
    assert [(row["kind"], row["mode"]) for row in found] == [("gguf", "copy"), ("gguf", "memory")]
    assert all(row["grown_bytes"] < 1.5 * row["layer_bytes"] for row in found)
