"""Bytes of K and V that size the window, against the engine's own count of the same settings."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftd.daemon.load_spec import kv_bytes_per_token
from ftd.daemon.modelinfo import ModelInfo
from ftd.engine import model_config
from tests.engine.hybrid import CASES
from tests.engine.tiny import SIZES


@pytest.mark.parametrize(("architecture", "values"), [("llama", SIZES), *CASES.items()])
def test_layers_with_attention_count(architecture: str, values: dict[str, Any]) -> None:
    info = cast(ModelInfo, SimpleNamespace(config=SimpleNamespace(hyperparameters=values)))
    assert kv_bytes_per_token(info) == model_config.make(architecture, values).kv_bytes_per_token(2)
