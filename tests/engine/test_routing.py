"""Traces and replays: Belady against exhaustive search, recorded traces against the figures beside them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.engine import routing
from ftd.engine.expert_cache import ExpertCache
from ftd.engine.routing import Trace
from ftd.errors import InvalidOption

# Share of uses that miss at 11, 25, 37 and 50 % of the experts, first 2,048 tokens, as the page beside the
# traces has them (decayed with admission and its fills per use, half-life 32 steps; Belady without bypass)
RECORDED = {
    "tiny-moe": {
        "lru": (1.000, 0.431, 0.263, 0.139),
        "decayed": (0.592, 0.326, 0.192, 0.104),
        "fills": (0.036, 0.047, 0.044, 0.045),
        "belady": (0.436, 0.202, 0.111, 0.055),
    },
    "tiny-hybrid": {
        "lru": (1.000, 0.365, 0.184, 0.077),
        "decayed": (0.531, 0.246, 0.130, 0.056),
        "fills": (0.035, 0.033, 0.037, 0.031),
        "belady": (0.404, 0.158, 0.076, 0.030),
    },
}
TOLERANCE = 0.005  # there one use at a time is replayed, here one layer


def trace_of(routing_ltk: list[list[list[int]]], num_experts: int) -> Trace:
    """Return a trace of tokens 0, 1, 2 …"""
    array = np.array(routing_ltk, np.int64)
    return Trace(array, np.arange(array.shape[1]), num_experts)


def fewest_misses(uses: tuple[int, ...], num_slots: int, bypass: bool) -> int:
    """Try every eviction."""
    states = {frozenset[int](): 0}
    for use in uses:
        following: dict[frozenset[int], int] = {}

        def reach(state: frozenset[int], cost: int, following: dict[frozenset[int], int] = following) -> None:
            following[state] = min(cost, following.get(state, cost))

        for state, cost in states.items():
            if use in state:
                reach(state, cost)
                continue
            if bypass or num_slots == 0:
                reach(state, cost + 1)
            if len(state) < num_slots:
                reach(state | {use}, cost + 1)
            elif num_slots:
                for victim in state:
                    reach(state - {victim} | {use}, cost + 1)
        states = following
    return min(states.values())


@settings(max_examples=examples(80))
@given(
    uses=st.lists(st.integers(0, 4), min_size=1, max_size=12), slots=st.integers(0, 4), bypass=st.booleans()
)
def test_belady_is_what_exhaustive_search_finds(uses: list[int], slots: int, bypass: bool) -> None:
    assert routing.belady_misses(uses, slots, bypass) == fewest_misses(tuple(uses), slots, bypass)


def test_misses_before_the_beginning_are_not_counted() -> None:
    uses = [1, 2, 3, 1, 2, 3]
    assert [routing.belady_misses(uses, 2, begin=place) for place in range(7)] == [4, 3, 2, 1, 1, 1, 0]


@settings(max_examples=examples(30))
@given(data=st.data(), slots=st.integers(0, 9), batch=st.integers(1, 3))
def test_no_policy_misses_less_than_belady(data: st.DataObject, slots: int, batch: int) -> None:
    chosen = st.permutations(range(5)).map(lambda order: order[:2])
    layers = data.draw(
        st.lists(st.lists(chosen, min_size=12, max_size=12), min_size=2, max_size=2), label="routing"
    )
    trace = trace_of(layers, 5)
    uses = np.concatenate([ids for step in trace.steps(batch) for ids in step])
    bound = routing.belady_misses(uses, slots)
    for policy in ("lru", "decayed"):
        counters = routing.replay(trace, slots, policy, batch=batch, half_life_steps=4)
        assert counters.uses - counters.hits >= bound
        one_a_layer = ExpertCache(trace.all_experts, slots, policy, trace.num_experts, 4)
        for layers_of_step in trace.steps(batch):
            for ids in layers_of_step:
                one_a_layer.access(ids, quota=1)
            one_a_layer.advance()
        assert one_a_layer.counters.uses - one_a_layer.counters.hits >= bound


def test_what_was_used_long_ago_gives_way_to_what_was_used_lately() -> None:
    """A use counts half as much after each step: four of 0, two to five steps ago, 0.47; one of 1, 0.5."""
    trace = trace_of([[[expert] for expert in (0, 0, 0, 0, 1, 2, 1)]], 3)
    hits = [routing.replay(trace, 2, "decayed", half_life_steps=steps).hits for steps in (1, 1000)]
    assert hits == [4, 3]


def test_steps_of_a_batch_are_parts_side_by_side() -> None:
    trace = trace_of([[[0, 1], [1, 2], [0, 3], [2, 3], [0, 1]], [[3, 2], [1, 0], [1, 0], [2, 3], [0, 1]]], 4)
    steps = [[ids.tolist() for ids in layers] for layers in trace.steps(batch=2)]
    assert steps == [[[0, 1, 3], [4, 5, 6, 7]], [[1, 2, 3], [4, 5, 6, 7]]]
    with pytest.raises(InvalidOption, match="batch is not between 1 and the 5 tokens"):
        list(trace.steps(6))


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    trace = trace_of([[[0, 299], [7, 2]]], 300)
    path = tmp_path / "trace.npz"
    routing.write_trace(path, trace)
    again = routing.read_trace(path, 300)
    assert np.array_equal(again.routing, trace.routing) and np.array_equal(again.tokens, trace.tokens)
    assert np.load(path)["routing"].dtype == np.uint16
    assert [file.name for file in tmp_path.iterdir()] == ["trace.npz"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"routing": np.zeros((1, 2, 1), np.uint8)}, "cannot read a routing trace"),
        ({"routing": np.zeros((1, 2, 1), np.int8), "tokens": np.zeros(2, np.uint8)}, "unsigned integers"),
        ({"routing": np.zeros((2, 1), np.uint8), "tokens": np.zeros(2, np.uint8)}, "unsigned integers"),
        ({"routing": np.zeros((1, 0, 1), np.uint8), "tokens": np.zeros(0, np.uint8)}, "unsigned integers"),
        ({"routing": np.zeros((1, 2, 1), np.uint8), "tokens": np.zeros(3, np.uint8)}, "impossible shapes"),
        (
            {"routing": np.full((1, 2, 1), 8, np.uint8), "tokens": np.zeros(2, np.uint8)},
            "expert 8 of 8",
        ),
        (
            {"routing": np.array([[[object()]]], dtype=object), "tokens": np.zeros(1, np.uint8)},
            "cannot read a routing trace",
        ),
    ],
)
def test_files_that_are_no_traces_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], said: str
) -> None:
    path = tmp_path / "trace.npz"
    np.savez(path, **arrays)
    with pytest.raises(InvalidOption, match=said):
        routing.read_trace(path, 8)


def test_a_file_of_noise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY" + bytes(20)):
        path.write_bytes(content)
        with pytest.raises(InvalidOption, match="cannot read a routing trace"):
            routing.read_trace(path)
    with pytest.raises(InvalidOption, match="cannot read a routing trace"):
        routing.read_trace(tmp_path / "nosuch.npz")


def test_the_report_counts_unions_and_the_hottest() -> None:
    trace = trace_of([[[0, 1]] * 10], 20)
    result = routing.report(trace, capacities=(0.05, 2), batch=2)
    assert (result.uses, result.union_mean, result.union_max, result.experts_used) == (10, 2.0, 2, 2)
    assert result.hottest_share == 1.0
    assert [row.num_slots for row in result.capacities] == [1, 2]
    assert (result.capacities[1].lru, result.capacities[1].belady) == (0.2, 0.2)
    assert len(routing.format_report(result).splitlines()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_recorded_traces_miss_as_they_are_said_to(real_model: Callable[[str], Path], name: str) -> None:
    trace = routing.read_trace(real_model(f"{name}/routing.npz"), 32).head(2048)
    rows = routing.report(trace, half_life_steps=32).capacities
    wanted = RECORDED[name]
    uses = [int(layer * 32 + e) for t in range(2048) for layer in range(8) for e in trace.routing[layer, t]]
    assert [row.lru for row in rows] == pytest.approx(wanted["lru"], abs=TOLERANCE)
    assert [row.decayed for row in rows] == pytest.approx(wanted["decayed"], abs=TOLERANCE)
    assert [row.decayed_fills for row in rows] == pytest.approx(wanted["fills"], abs=TOLERANCE)
    for row, misses in zip(rows, wanted["belady"], strict=True):
        demand = routing.belady_misses(uses, row.num_slots, bypass=False) / len(uses)
        assert demand == pytest.approx(misses, abs=0.001)
        assert row.belady <= demand


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_one_fill_beside_a_layer_is_enough_on_the_recorded_traces(
    real_model: Callable[[str], Path], name: str
) -> None:
    """All misses run on the processor; the limit of what is filled beside them costs hardly a hit."""
    trace = routing.read_trace(real_model(f"{name}/routing.npz"), 32).head(2048)
    rates = []
    for warm in (None, 1):
        cache = ExpertCache(trace.all_experts, int(0.37 * trace.all_experts))
        for layers in trace.steps():
            for ids in layers:
                cache.access(ids, 0, warm)
            cache.advance()
        assert cache.counters.on_cpu == cache.counters.uses - cache.counters.hits
        rates.append(cache.counters.miss_rate)
    uses = np.concatenate([ids for step in trace.steps() for ids in step])
    belady = routing.belady_misses(uses, int(0.37 * trace.all_experts)) / len(uses)
    assert belady < rates[1] <= rates[0] + 0.005
