"""What an engine says of its memory, against sizes typed by hand."""

import logging

import pytest
from msgspec.structs import replace

from ftd.engine import devices, report
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.messages import Load
from ftd.engine.plan import Plan
from ftd.engine.sizing import Sizes

PLAN = Plan(
    page_size=32,
    num_pages=64,
    max_sequences=2,
    context_tokens=1024,
    prefill_chunk_tokens=512,
    weight_bytes=1000,
    kv_bytes=200,
    workspace_bytes=30,
    state_bytes=5,
    overhead_bytes=400 + 2 * 4 * 10,
)
EXPERTS = ExpertNeeds(num_layers=3, num_experts=4, record_bytes=10)
LOAD = Load(config_path="", blob_paths={}, context_tokens=0, device_memory_bytes=5000, host_memory_bytes=77)


def card() -> devices.Device:
    """A card, as far as reports look."""
    return replace(devices.cpu(), name="cuda", label="a card", reason="it can be used")


def test_the_parts_add_up_to_the_plan() -> None:
    memory = report.planned(card(), Sizes(PLAN, EXPERTS, 5), LOAD)
    assert (memory.place, memory.reason, memory.budget_bytes) == ("a card", "it can be used", 5000)
    assert (memory.kv_bytes, memory.overhead_bytes, memory.slot_bytes) == (205, 400, 13 * 10)
    assert (memory.slots, memory.experts, memory.host_expert_bytes) == (5, 12, 120)
    assert report.total(memory) == PLAN.total_bytes + 5 * 10


def test_the_processor_has_the_budget_of_the_host() -> None:
    memory = report.planned(devices.cpu("why"), Sizes(replace(PLAN, overhead_bytes=0)), LOAD)
    assert (memory.place, memory.reason, memory.budget_bytes) == ("cpu", "why", 77)
    assert report.total(memory) == 1235


@pytest.mark.parametrize(
    ("used", "level"), [(0, None), (1500, logging.INFO), (1800, logging.INFO), (1801, logging.WARNING)]
)
def test_a_fiftieth_more_than_was_planned_is_a_warning(
    caplog: pytest.LogCaptureFixture, used: int, level: int | None
) -> None:
    memory = report.planned(card(), Sizes(PLAN, EXPERTS, 5), LOAD)
    assert report.total(memory) == 1765
    caplog.clear()
    with caplog.at_level(logging.INFO):
        found = report.found(memory, used, ["a note"])
    assert found.used_bytes == used and found.notes == ["a note"]
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
