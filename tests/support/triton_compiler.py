"""Compiles Triton kernels for an H200 on a machine without a card, instead of running them.

    import triton_compiler      before ftd's kernels are called, in a process without TRITON_INTERPRET
    op(cpu tensors, …)          compiles what it would launch; results are what memory happens to hold
    triton_compiler.compiled    name and constants of each kernel, its registers and its spilled bytes

The interpreter forgives what the compiler refuses (a variable whose shape changes in a loop), so this is run
before a card is.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, KernelInterface

assert not os.environ.get("TRITON_INTERPRET"), "the interpreter compiles nothing"

compiled: dict[str, tuple[int, int]] = {}
# What a program may take of a multiprocessor's shared memory
MOST_SHARED_BYTES = 227 * 1024
_DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class _H200:
    """What compiling asks of a driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return registers a thread and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [_DUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def _compile(self: Any, grid: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> None:
        kernel = JITFunction.run(self, *args, grid=grid, warmup=True, **kwargs)
        constants = " ".join(f"{name}={value}" for name, value in kwargs.items())
        shared = kernel.metadata.shared
        assert shared <= MOST_SHARED_BYTES, f"{shared} bytes of shared memory: {self.fn.__name__} {constants}"
        compiled[f"{self.fn.__module__}.{self.fn.__name__} {constants}"] = _resources(kernel.asm["cubin"])

    return call


driver.set_active(_H200())
KernelInterface.__getitem__ = _compile
