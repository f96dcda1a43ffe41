"""scripts/bench-kernels: its smoke run checks every op against its reference and writes a row for each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench-kernels"


@pytest.mark.slow
def test_smoke_run_writes_a_row_for_each_op(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--threads", "2", "--json", rows], check=True, timeout=100
    )
    written = json.loads(rows.read_text())
    assert {row["op"] for row in written} == {
        "rms_norm",
        "add",
        "swiglu",
        "rope",
        "attention",
        "sample",
        "logprobs",
        "layer_norm",
        "gelu",
        "position_embedding",
        "latent_attention",
        "latent_norm",
        "head_linear",
        "gated_delta",
        "causal_conv",
        "sigmoid_gate",
    }
    assert all(0 < row["min_s"] <= row["median_s"] for row in written)
