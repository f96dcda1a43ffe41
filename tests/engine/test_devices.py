"""Which device a model gets, on machines with and without a card (what torch sees is replaced here)."""

import pytest

from ftd.engine import devices
from ftd.errors import KernelUnavailable


def test_a_machine_without_a_card_computes_on_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: ("there is none", "buy one"))
    assert devices.choose("auto", "llama").name == "cpu"
    with pytest.raises(KernelUnavailable, match="there is none") as caught:
        devices.choose("cuda", "llama")
    assert caught.value.hint == "buy one"


def test_unproven_families_take_a_card_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(devices, "cuda", devices.interpreter)
    assert devices.choose("auto", "qwen3_next").name == "cpu"
    assert devices.choose("cuda", "qwen3_next").name == "interpreter"
    assert devices.choose("auto", "llama").name == "interpreter"
