"""Which device a model gets, on machines with and without a card (what torch sees is replaced here)."""

import pytest

from ftd.engine import devices
from ftd.errors import KernelUnavailable


def test_a_machine_without_a_card_computes_on_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: ("there is none", "buy one"))
    assert devices.choose("auto").name == "cpu"
    with pytest.raises(KernelUnavailable, match="there is none") as caught:
        devices.choose("cuda")
    assert caught.value.hint == "buy one"


def test_auto_takes_the_card_and_cpu_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(devices, "cuda", devices.interpreter)
    names = {wanted: devices.choose(wanted).name for wanted in ("auto", "cuda", "cpu")}
    assert names == {"auto": "interpreter", "cuda": "interpreter", "cpu": "cpu"}
