"""What a place is where it says nothing, and what it may say: formulas, arenas, threads."""

from typing import Any

import pytest

from ftd.engine import device as module
from ftd.engine.device import Device


def graph(*values: Any) -> Any:
    raise AssertionError("no graph is made here")


def place(name: str = "cpu", **more: Any) -> Device:
    return Device(
        name=name,
        label=name.upper(),
        make_graph=graph,
        make_pages=lambda shape, precision: ("pages", shape, precision),
        free_bytes=lambda: 100,
        **more,
    )


def test_a_processor_says_nothing_of_cards() -> None:
    made = place()
    assert made.make_chooser(100, 4) is None and made.rates is None and made.used_bytes is None
    assert not made.copies_weights and made.context_bytes == 0 and made.reason == ""
    assert made.release() is None
    assert made.workspace(None, graph, "fast", 16) is None, "a formula says it"  # type: ignore[arg-type]
    assert made.arena(1000) is made.make_pages


def test_a_card_counts_and_allocates_at_once() -> None:
    outlined: list[str] = []
    sizes: list[int] = []

    def outline() -> Any:
        outlined.append("asked")
        return "weights"

    def arena(num_bytes: int) -> Any:
        sizes.append(num_bytes)
        return lambda shape, precision: ("arena", shape)

    made = place(
        "cuda",
        make_weights=lambda upload, dense, experts: "copied",
        make_arena=arena,
        make_workspace=lambda *facts: facts,
    )
    assert made.copies_weights
    workspace: Any = made.workspace("config", outline, "f32", 16)  # type: ignore[arg-type]
    assert workspace == ("config", "weights", "f32", 16) and outlined == ["asked"]
    assert made.arena(4096)((1, 2), "fast") == ("arena", (1, 2)) and sizes == [4096]


@pytest.mark.parametrize(("cores", "beside_a_card"), [(1, 1), (2, 1), (16, 15)])
def test_beside_a_card_one_core_is_the_engines(
    cores: int, beside_a_card: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: list(range(cores)))
    assert place("cuda").num_threads() == beside_a_card
    assert place("cpu").num_threads() == place("interpreter").num_threads() == 0, "all cores"
