"""Triton's compiler takes the kernels for an H200, which the interpreter of the other tests does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_attention_its_inputs_and_sampling_compile_and_keep_values_in_registers() -> None:
    script = Path(__file__).with_name("compile_attention.py")
    root = script.parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{root / 'tests' / 'support'}{os.pathsep}{root}"
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == ""
