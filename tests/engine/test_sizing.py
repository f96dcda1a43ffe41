"""Where a model goes when a card is too small for it: the card is replaced by one of a few bytes here."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ftd.engine import devices, loader, model_config, sizing
from ftd.engine.messages import Load
from ftd.engine.sizing import Sizes
from ftd.engine.synthetic import Synthetic
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


def sizes_of_30b(gigabytes: float, **options: object) -> Sizes:
    """Return the sizes of 30b-a3b in q4_0, 17 GB, on a card with so much memory."""
    source = Synthetic("30b-a3b", "q4_0")
    config = model_config.make(source.config.architecture, source.config.hyperparameters)
    load = Load(
        config_path="", blob_paths={}, context_tokens=32768, max_sequences=1, device="cuda", **options
    )  # type: ignore[arg-type]
    card = replace(
        devices.cpu(),
        name="cuda",
        free_bytes=lambda: int(gigabytes * 1e9),
        chunk_tokens=devices.CUDA_CHUNK_TOKENS,
    )
    return sizing.decide(load, source.config, config, card)


def test_prompts_run_in_longer_chunks_where_experts_are_streamed() -> None:
    assert sizes_of_30b(40).num_slots == 0
    assert sizes_of_30b(40).plan.prefill_chunk_tokens == devices.CUDA_CHUNK_TOKENS
    found = sizes_of_30b(40, expert_slots=0.37)
    assert found.num_slots == int(0.37 * 48 * 128)
    assert found.plan.prefill_chunk_tokens == 8192
    assert sizes_of_30b(40, expert_slots=0.95).plan.prefill_chunk_tokens == devices.CUDA_CHUNK_TOKENS
    assert sizes_of_30b(40, expert_slots=0.37, prefill_chunk_tokens=512).plan.prefill_chunk_tokens == 512


@pytest.mark.parametrize("gigabytes", [9, 12, 16])
def test_longer_chunks_do_not_cost_many_slots(gigabytes: float) -> None:
    short = sizes_of_30b(gigabytes, prefill_chunk_tokens=devices.CUDA_CHUNK_TOKENS)
    found = sizes_of_30b(gigabytes)
    assert found.plan.prefill_chunk_tokens >= devices.CUDA_CHUNK_TOKENS
    assert short.num_slots >= found.num_slots >= 0.9 * short.num_slots
