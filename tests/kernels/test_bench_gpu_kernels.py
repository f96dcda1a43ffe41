"""scripts/bench-gpu-kernels makes cases that run, and leaves launch parameters as they were."""

from types import ModuleType

import pytest
from script_module import load_script


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, on the processor, over memory that is soon filled."""
    module = load_script(monkeypatch, "bench-gpu-kernels")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "COLD_BYTES", 1 << 20)
    return module


@pytest.mark.parametrize(
    "op",
    [
        pytest.param("decode", marks=pytest.mark.slow),
        "inputs",
        "norm",
        pytest.param("sample", marks=pytest.mark.slow),
    ],
)
def test_the_first_case_of_an_op_runs(bench: ModuleType, op: str) -> None:
    case = next(bench.OPS[op]())
    case.launches[0]()
    assert case.work > 0 and case.unit in ("GB/s", "TFLOP/s")


def test_variants_are_undone(bench: ModuleType) -> None:
    modules = (bench.decode_module, bench.prefill_module, bench.qkv_module)
    before = [dict(vars(module)) | {"TILES": dict(vars(module).get("TILES", {}))} for module in modules]
    names = [name for _, name in bench.settings(list(bench.VARIANTS), True)]
    assert len(names) == len(bench.VARIANTS) + len(set(names) - {""})
    assert [
        dict(vars(module)) | {"TILES": dict(vars(module).get("TILES", {}))} for module in modules
    ] == before
