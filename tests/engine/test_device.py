"""What a device is without a card, and which parts of one change what the engine asks for."""

from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from ftd.engine import device, devices
from ftd.engine.model_config import ModelConfig

CONFIG = cast(ModelConfig, "the model's sizes")


def test_a_processor_shares_its_memory_with_the_system() -> None:
    processor = devices.cpu("no card")
    assert processor.arena(1 << 40) is np.zeros
    assert processor.make_weights is None
    assert processor.make_chooser(8, 1) is None
    assert (processor.rates, processor.used_bytes, processor.reason) == (None, None, "no card")


def test_the_outline_of_weights_is_made_only_where_a_workspace_is_counted() -> None:
    asked: list[Any] = []
    assert devices.cpu().workspace(CONFIG, lambda: pytest.fail("nobody needs it"), "fast", 32) is None
    card = replace(devices.cpu(), make_workspace=lambda *rest: asked.append(rest) or max)
    assert card.workspace(CONFIG, lambda: cast(Any, "an outline"), "f32", 16) is max
    assert asked == [(CONFIG, "an outline", "f32", 16)]


@pytest.mark.parametrize(("name", "cores", "threads"), [("cpu", 8, 0), ("cuda", 8, 7), ("cuda", 1, 1)])
def test_beside_a_card_one_core_is_left_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, name: str, cores: int, threads: int
) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: list(range(cores)))
    assert replace(devices.cpu(), name=name).num_threads() == threads
