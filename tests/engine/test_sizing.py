"""Where a model goes when a card is too small for it: the card is replaced by one of a few bytes here."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ftd.engine import card_memory, devices, loader, model_config, sizing
from ftd.engine.device import CUDA_CHUNK_TOKENS
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
    model = sizing.Model(source.config, config, source.outline)
    device, sizes = sizing.place(replace(load, device="auto"), model)
    assert "not enough memory" in device.reason
    assert device.name == "cpu" and sizes.plan.num_pages > 0
    with pytest.raises(OutOfMemory, match="not enough memory"):
        sizing.place(replace(load, device="cuda"), model)
    monkeypatch.setattr(devices, "cuda", lambda: replace(card, free_bytes=lambda: 1 << 30))
    device, _ = sizing.place(replace(load, device="auto"), model)
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
        chunk_tokens=CUDA_CHUNK_TOKENS,
    )
    return sizing.decide(load, sizing.Model(source.config, config, source.outline), card)


def test_prompts_run_in_longer_chunks_where_experts_are_streamed() -> None:
    assert sizes_of_30b(40).num_slots == 0
    assert sizes_of_30b(40).plan.prefill_chunk_tokens == CUDA_CHUNK_TOKENS
    found = sizes_of_30b(40, expert_slots=0.37)
    assert found.num_slots == int(0.37 * 48 * 128)
    assert found.plan.prefill_chunk_tokens == 8192
    assert sizes_of_30b(40, expert_slots=0.95).plan.prefill_chunk_tokens == CUDA_CHUNK_TOKENS
    assert sizes_of_30b(40, expert_slots=0.37, prefill_chunk_tokens=512).plan.prefill_chunk_tokens == 512


@pytest.mark.parametrize("gigabytes", [9, 12, 16])
def test_longer_chunks_do_not_cost_many_slots(gigabytes: float) -> None:
    short = sizes_of_30b(gigabytes, prefill_chunk_tokens=CUDA_CHUNK_TOKENS)
    found = sizes_of_30b(gigabytes)
    assert found.plan.prefill_chunk_tokens >= CUDA_CHUNK_TOKENS
    assert short.num_slots >= found.num_slots >= 0.9 * short.num_slots


def test_one_layer_is_staged_where_two_do_not_fit() -> None:
    two = sizes_of_30b(12, prefill_chunk_tokens=512)
    assert two.experts is not None and two.experts.staged_layers == 2
    layer_bytes = two.experts.staged_bytes // 2
    # What the plan and one layer and a half need
    total = two.plan.total_bytes - layer_bytes // 2
    one = sizes_of_30b(total / 1e9, prefill_chunk_tokens=512)
    assert one.experts is not None and one.experts.staged_layers == 1
    assert 0 < one.num_slots * one.experts.record_bytes <= layer_bytes // 2
    assert one.plan.total_bytes + one.num_slots * one.experts.record_bytes <= total
    with pytest.raises(OutOfMemory):
        sizes_of_30b((total - layer_bytes) / 1e9, prefill_chunk_tokens=512)


def model_of(architecture: str, folder: Path) -> tuple[Load, sizing.Model]:
    """Return a tiny model as files, and the message that loads it."""
    load = write_ftw(tiny.make(architecture), folder)
    source = loader.Files(Path(load.config_path), {d: Path(path) for d, path in load.blob_paths.items()})
    config = model_config.make(source.config.architecture, source.config.hyperparameters)
    return load, sizing.Model(source.config, config, source.outline)


def test_the_budget_of_a_card_is_what_the_process_may_take(tmp_path: Path) -> None:
    load, model = model_of("llama", tmp_path)
    card = replace(devices.cpu(), name="cuda", free_bytes=lambda: 8 << 30, context_bytes=500 << 20)
    load = replace(load, device_memory_bytes=1 << 30)
    made = sizing.decide(load, model, card).plan
    assert made.overhead_bytes == card_memory.overhead(500 << 20, load.max_sequences, False)
    assert made.overhead_bytes < made.total_bytes <= 1 << 30
    with pytest.raises(OutOfMemory, match=r"driver, kernels and staging 7\d\d MB.*available 100 MB"):
        sizing.decide(replace(load, device_memory_bytes=100_000_000), model, card)


def test_slots_get_as_much_as_further_windows(tmp_path: Path) -> None:
    load, model = model_of("mixtral", tmp_path)
    records = model.file_config.experts
    assert records is not None
    staged_bytes = 2 * records.num_experts * records.record_bytes
    card = replace(devices.cpu(), name="card", free_bytes=lambda: 8 << 30)
    whole = sizing.decide(load, model, card)
    assert whole.experts is None
    # Where all experts are on the card, the plan has them; where they are not, slots do
    assert whole.plan.weight_bytes == sum(blob.size for blob in model.file_config.blobs)
    dense_bytes = (
        whole.plan.weight_bytes - sizing.expert_bytes(model.file_config) + whole.plan.workspace_bytes
    )
    one_window = whole.plan.kv_bytes // load.max_sequences
    page_bytes = whole.plan.kv_bytes // whole.plan.num_pages
    for windows in (1, 2, 3, 4):
        free_bytes = dense_bytes + staged_bytes + windows * one_window
        sizes = sizing.decide(load, model, replace(card, free_bytes=lambda free=free_bytes: free))
        slot_bytes = sizes.num_slots * records.record_bytes
        assert sizes.experts is not None
        assert sizes.plan.kv_bytes == pytest.approx(max(one_window, windows * one_window / 2), abs=page_bytes)
        assert 0 <= free_bytes - sizes.plan.total_bytes - slot_bytes < records.record_bytes


def test_experts_that_host_memory_cannot_hold_are_refused(tmp_path: Path) -> None:
    load, model = model_of("mixtral", tmp_path)
    experts = sizing.expert_bytes(model.file_config)
    card = replace(devices.cpu(), name="card")
    whole = sizing.decide(load, model, replace(card, free_bytes=lambda: 8 << 30)).plan
    card = replace(card, free_bytes=lambda: whole.total_bytes - 4096)
    small = replace(load, host_memory_bytes=experts - 1)
    with pytest.raises(OutOfMemory, match="allowed by FTD_HOST_MEMORY") as caught:
        sizing.decide(small, model, card)
    assert caught.value.hint is not None and "FTD_HOST_MEMORY" in caught.value.hint
    enough = replace(load, host_memory_bytes=experts)
    assert sizing.decide(enough, model, card).experts is not None


def test_the_processor_keeps_to_the_budget_of_the_host(tmp_path: Path) -> None:
    load, model = model_of("llama", tmp_path)
    whole = sizing.decide(load, model, devices.cpu()).plan
    less = whole.total_bytes - whole.kv_bytes // 2
    made = sizing.decide(replace(load, host_memory_bytes=less), model, devices.cpu()).plan
    assert made.num_pages < whole.num_pages and made.total_bytes <= less
    with pytest.raises(OutOfMemory, match="not enough memory"):
        sizing.decide(replace(load, host_memory_bytes=1000), model, devices.cpu())
