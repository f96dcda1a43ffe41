"""scripts/bench-cpu: which rows it would measure, and a short comparison with a peer that is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts" / "bench-cpu")
# Read before tests scrub the environment
PEER = Path(os.environ.get("FTD_PEER") or ROOT / ".cache" / "peer" / "build" / "bin")


def rows(*words: str) -> list[str]:
    """Return the rows that the script would measure."""
    command = [sys.executable, SCRIPT, "--dry-run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_every_row_is_there_and_can_be_chosen() -> None:
    everything = rows()
    assert len(everything) == len(set(everything)) == 1 + 6 * 2 * (3 + 2)
    assert {"q4_1 cold start s", "1.5b-q4_k t2 decode @2048", "f16 t1 prefill 32"} <= set(everything)
    assert rows("--rows", "^q8_0 .*(512|@0)$", "--threads", "2") == [
        "q8_0 t2 prefill 512",
        "q8_0 t2 decode @0",
    ]


def test_an_unknown_model_and_an_empty_peer_are_refused(tmp_path: Path) -> None:
    for words, said in (
        (["--models", "q9"], "unknown models: q9"),
        (["--smoke"], "FTD_PEER has not all programs"),
    ):
        environment = {**os.environ, "FTD_PEER": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, SCRIPT, *words], env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode and said in result.stderr


@pytest.mark.slow
def test_the_smoke_run_compares_with_a_peer() -> None:
    """Against the programs that are built already: building them is the script's first run."""
    if not (PEER / "llama-batched-bench").exists():
        pytest.skip("no llama.cpp is built: run scripts/bench-cpu once, or set FTD_PEER")
    result = subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--json"],
        env={**os.environ, "FTD_PEER": str(PEER)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(found) == ["q4_1 cold start s", "q4_1 t1 prefill 32", "q4_1 t1 decode @0"]
    for row in found.values():
        assert min(row["ftd"], row["peer"]) > 0
    decode = found["q4_1 t1 decode @0"]
    assert decode["ratio"] == pytest.approx(decode["ftd"] / decode["peer"]) and 0 < decode["roofline"] < 1.5
