"""Triton's compiler takes the kernels for an H200, which the interpreter of the other tests does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("compile_attention.py", []),
        ("compile_products.py", ["q4_0,q6_k"]),
        ("compile_experts.py", ["bf16,f32,q4_0"]),
        ("compile_families.py", []),
    ],
)
def test_kernels_compile_and_keep_values_in_registers(script: str, arguments: list[str]) -> None:
    path = Path(__file__).with_name(script)
    root = path.parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{root / 'tests' / 'support'}{os.pathsep}{root}"
    command = [sys.executable, path, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == ""
