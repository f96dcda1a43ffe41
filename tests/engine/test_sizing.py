"""Where a model goes when a card is too small for it: the card is replaced by one of a few bytes here."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ftd.engine import devices, loader, model_config, sizing
from ftd.errors import OutOfMemory
from tests.engine import tiny
from tests.engine.serving import write_ftw


def test_auto_takes_the_processor_where_the_card_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = write_ftw(tiny.make("llama"), tmp_path)
    paths = {digest: Path(path) for digest, path in load.blob_paths.items()}
    source = loader.Files(Path(load.config_path), paths)
    config = model_config.make(source.config.architecture, source.config.hyperparameters)
    card = replace(devices.cpu(), name="cuda", free_bytes=lambda: 1000)
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(devices, "cuda", lambda: card)
    device, sizes = sizing.place(msgspec.structs.replace(load, device="auto"), source.config, config)
    assert device.name == "cpu" and sizes.plan.num_pages > 0
    with pytest.raises(OutOfMemory, match="not enough memory"):
        sizing.place(msgspec.structs.replace(load, device="cuda"), source.config, config)
    monkeypatch.setattr(devices, "cuda", lambda: replace(card, free_bytes=lambda: 1 << 30))
    device, _ = sizing.place(msgspec.structs.replace(load, device="auto"), source.config, config)
    assert device.name == "cuda"
