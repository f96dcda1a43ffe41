"""The door: which implementation is given, the switch, and the rules that all kernel files keep."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ftd.kernels
from ftd.errors import KernelUnavailable
from ftd.kernels import dispatch

FOLDER = Path(ftd.kernels.__file__).parent
DIRECTIVES = (
    "# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True"
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.p[xy][dx]")), ids=lambda path: path.name)
def test_every_cython_file_starts_with_the_same_directives(path: Path) -> None:
    assert path.read_text(encoding="utf-8").splitlines()[0] == DIRECTIVES


@pytest.mark.parametrize("op", sorted(op for op, _ in dispatch.OPS if op != "graph"))
def test_both_versions_of_an_op_have_the_same_parameters(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTD_KERNELS", raising=False)
    name, fast = dispatch.choose(op)
    assert name == "cython"
    monkeypatch.setenv("FTD_KERNELS", "reference")
    name, slow = dispatch.choose(op)
    assert name == "reference"
    assert list(inspect.signature(fast).parameters) == list(inspect.signature(slow).parameters)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_ref.py")), ids=lambda path: path.name)
def test_every_reference_is_an_op_and_a_card_takes_what_it_takes(path: Path) -> None:
    op = path.name.removesuffix("_ref.py")
    assert (op, "cpu") in dispatch.OPS
    if not (FOLDER / f"{op}_triton.py").exists():
        return
    pytest.importorskip("triton", reason="the GPU engine needs triton")
    here, there = (importlib.import_module(f"ftd.kernels.{op}_{kind}") for kind in ("ref", "triton"))
    parameters = [inspect.signature(getattr(module, op)).parameters for module in (here, there)]
    assert list(parameters[0]) == list(parameters[1])
    assert [each.default for each in parameters[0].values()] == [
        each.default for each in parameters[1].values()
    ]
    text = inspect.getdoc(getattr(here, op)) or ""
    assert "Bytes moved" in text and re.search(r"\[[A-Z]", text), "shapes and bytes are the contract"


def test_both_graphs_have_the_same_methods() -> None:
    graphs = [dispatch._load("graph", implementation) for implementation in ("cython", "reference")]
    fast, slow = ({name for name in dir(graph) if not name.startswith("_")} for graph in graphs)
    assert fast == slow


def test_the_table_is_complete_in_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTD_KERNELS", "reference")
    assert dispatch.describe() == {op: "reference" for op, _ in dispatch.OPS}


def test_an_unknown_op_device_or_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelUnavailable, match="fft"):
        dispatch.get("fft")
    with pytest.raises(KernelUnavailable, match="cuda"):
        dispatch.get("matmul", "cuda")
    monkeypatch.setenv("FTD_KERNELS", "fortran")
    with pytest.raises(KernelUnavailable, match="fortran"):
        dispatch.get("matmul")


def test_an_unbuilt_op_falls_back_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTD_KERNELS", raising=False)
    monkeypatch.setitem(dispatch.MODULES, "cython", "ftd.kernels._{op}_absent")
    with pytest.warns(RuntimeWarning, match="matmul is not built"):
        assert dispatch.choose("matmul")[0] == "reference"


def test_an_unbuilt_op_of_a_card_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTD_KERNELS", raising=False)
    monkeypatch.setitem(dispatch.OPS, ("matmul", "cuda"), ("triton", "reference"))
    monkeypatch.setitem(dispatch.MODULES, "triton", "ftd.kernels.{op}_absent")
    with pytest.raises(KernelUnavailable, match="not built"):
        dispatch.get("matmul", "cuda")


def test_kernels_import_neither_torch_nor_other_packages_of_ftd() -> None:
    code = (
        "import sys; from ftd.kernels import dispatch; dispatch.describe();"
        "print(sorted({'.'.join(n.split('.')[:2]) for n in sys.modules if n.startswith(('ftd.', 'torch'))}))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "FTD_KERNELS"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout == "['ftd.choices', 'ftd.environment', 'ftd.errors', 'ftd.kernels', 'ftd.machine']\n"
