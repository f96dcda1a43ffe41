"""Programs of ``scripts/`` as modules."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """Return ``scripts/NAME`` as a module of this test; what it adds to the path goes with it."""
    module_name = name.removesuffix(".py").replace("-", "_") + "_script"
    loader = importlib.machinery.SourceFileLoader(module_name, str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    loader.exec_module(module)
    return module
