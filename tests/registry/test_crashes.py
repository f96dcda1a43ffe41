"""A create and a pull that are killed at every step they take: tests/support/crash_steps.py does it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("stride", [67, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("what", "num_steps"), [("create", 100), ("pull", 60)])
def test_a_kill_at_any_step_leaves_a_sound_store_and_the_next_try_ends(
    what: str, num_steps: int, stride: int, tmp_path: Path
) -> None:
    command = [sys.executable, str(SUPPORT / "crash_steps.py"), what, str(tmp_path), str(stride)]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    verdict, _, steps = done.stdout.rpartition("done ")
    assert verdict == ""
    assert int(steps) > num_steps
