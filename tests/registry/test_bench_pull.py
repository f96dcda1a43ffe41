"""scripts/bench-pull runs, checks what it pulled, and meets its aims on a small blob."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench-pull"


@pytest.mark.slow
def test_the_benchmark_measures_a_ratio_and_a_share(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--smoke",
        "--json",
        str(tmp_path / "out.json"),
        "--dir",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["mib"] == 96
    assert found["pull_mib_per_s"] > 0
    assert found["ratio"] > 0.2
    assert 0 <= found["resent_share"] <= 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
