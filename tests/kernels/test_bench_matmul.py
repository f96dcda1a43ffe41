"""scripts/bench-matmul runs: every format checked against its reference and timed once."""

import json
import subprocess
import sys
from pathlib import Path

from ftd.kernels.quant import FORMATS

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_products_covers_every_format(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "bench-matmul"), "--smoke", "--threads", "2"]
    output = subprocess.run(
        [*command, "--json", str(tmp_path / "rows.json")], capture_output=True, text=True, check=True
    )
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert {row["format"] for row in rows} == set(FORMATS)
    assert all(row["min_us"] > 0 for row in rows)
    assert len(output.stdout.splitlines()) == 3 + len(rows)
