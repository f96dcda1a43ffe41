"""The benchmark of the daemon runs and reports every route."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench-daemon"


@pytest.mark.slow
def test_smoke(tmp_path):
    rows = tmp_path / "rows.json"
    subprocess.run([sys.executable, SCRIPT, "--smoke", "--json", rows], check=True, timeout=250)
    assert len(json.loads(rows.read_text())) == 6
