"""CpuGraph against ReferenceGraph, op by op and as a small transformer; and what both refuse."""

from typing import Any

import numpy as np
import pytest
from banks import random_bank
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._pool import Pool
from ftd.kernels.reference_graph import ReferenceGraph

PAGE, PAGES = 4, 16
LIMITS = {
    "max_tokens": 24,
    "max_sequences": 3,
    "max_logits": 4,
    "page_size": PAGE,
    "max_pages_per_sequence": PAGES,
}
D, F, H, G, C, V = 64, 96, 4, 2, 16, 50
# Rounding of activations turns on bits that differ between implementations: then one step of 255 levels.
TOLERANCE = {"f32": 2e-5, "fast": 2e-2}


def small_model(graph: Any, seed: int = 5, dtype: Any = np.float32) -> tuple[Any, dict[str, Any]]:
    """Record two layers with every op of the API; return the logits and all buffers by name."""
    rng = np.random.default_rng(seed)

    def vector(size: int) -> NDArray[np.float32]:
        return rng.standard_normal(size).astype(np.float32)

    def matrix(rows: int, columns: int, name: str = "q4_1") -> Any:
        return random_matrix(name, rows, columns, rng)

    inv_freq = (1 / 10000 ** (np.arange(0, C, 2) / C)).astype(np.float32)
    x, normed, mixed = graph.buffer(D), graph.buffer(D), graph.buffer(H * C)
    q, k, v = graph.buffer(H * C), graph.buffer(G * C), graph.buffer(G * C)
    gate, up, act = graph.buffer(F), graph.buffer(F), graph.buffer(F)
    graph.embedding(x, matrix(V, D, "q8_0"), scale=2.0)
    for layer in range(2):
        k_pages = np.zeros((3 * PAGES, G, C, PAGE), dtype)
        v_pages = np.zeros((3 * PAGES, G, PAGE, C), dtype)
        graph.rms_norm(normed, x, vector(D), 1e-5)
        products = [(q, matrix(H * C, D), vector(H * C)), (k, matrix(G * C, D, "bf16"), None)]
        graph.linears([*products, (v, matrix(G * C, D, "q5_0"), None)], normed)
        graph.head_rms_norm(q, H, vector(C), 1e-6)
        graph.rope(q, H, C, inv_freq)
        graph.rope(k, G, C, inv_freq)
        graph.kv_store(k, v, k_pages, v_pages)
        sinks = vector(H) if layer else None
        graph.attention(mixed, q, k_pages, v_pages, H, C**-0.5, window=7 * layer, sinks=sinks)
        graph.linear_add(x, mixed, matrix(D, H * C, "q4_0"))
        graph.rms_norm(normed, x, vector(D), 1e-5)
        graph.linears([(gate, matrix(F, D), None), (up, matrix(F, D), None)], normed)
        graph.swiglu(act, gate, up)
        graph.linear(normed, act, matrix(D, F, "q5_1"), vector(D))
        graph.add(x, normed)
    rows = graph.logit_buffer(D)
    graph.select_logit_rows(rows, x)
    logits = graph.logit_buffer(V)
    graph.rms_norm(rows, rows, vector(D), 1e-5)
    graph.linear(logits, rows, matrix(V, D, "q8_0"))
    graph.finish()
    names = {"x": x, "q": q, "k": k, "v": v, "mixed": mixed, "act": act, "rows": rows, "logits": logits}
    return logits, names


def step(
    lengths: list[int], starts: list[int], rng: np.random.Generator, logits: list[int] | None = None
) -> list[Any]:
    """Return the arrays of a step of sequences with ``lengths`` new tokens after ``starts`` old ones."""
    positions = np.concatenate([np.arange(n) + s for n, s in zip(lengths, starts, strict=True)]).astype(
        np.int32
    )
    table = np.arange(3 * PAGES, dtype=np.int32).reshape(3, PAGES)[::-1].copy()
    owner = np.repeat(np.arange(len(lengths)), lengths)
    kv_index = table[owner, positions // PAGE] * PAGE + positions % PAGE
    q_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.random.default_rng(sum(starts)).integers(0, V, len(positions)).astype(np.int32)
    wanted = np.array(q_start[1:] - 1 if logits is None else logits, np.int32)
    kv_len = (np.array(lengths) + starts).astype(np.int32)
    return [ids, positions, kv_index.astype(np.int32), q_start, kv_len, table[: len(lengths)].copy(), wanted]


STEPS = [([5, 1, 9], [0, 0, 0]), ([1, 1, 1], [5, 1, 9]), ([3, 2, 17], [6, 2, 10]), ([1], [9])]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_a_small_transformer_matches_the_reference(
    precision: str, dtype: Any, isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    reference = ReferenceGraph(None, precision=precision, **LIMITS)
    graph = CpuGraph(pools[2], precision=precision, **LIMITS)
    _, expected = small_model(reference, dtype=dtype)
    _, actual = small_model(graph, dtype=dtype)
    for lengths, starts in STEPS:
        arrays = step(lengths, starts, rng)
        reference.run(*arrays)
        graph.run(*arrays)
        for name in expected:
            want, have = reference.view(expected[name]), graph.view(actual[name])
            assert have.shape == want.shape
            worst = np.abs(have - want).max() / np.abs(want).max()
            assert worst <= TOLERANCE[precision] + (2e-3 if dtype == np.float16 else 0), (
                name,
                lengths,
                worst,
            )


def test_a_batch_gives_the_bits_of_its_sequences_alone(
    isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    together, alone = CpuGraph(pools[1], **LIMITS), CpuGraph(pools[3], **LIMITS)
    many, one = small_model(together)[0], small_model(alone)[0]
    for lengths, starts in STEPS[:3]:
        arrays = step(lengths, starts, rng)
        together.run(*arrays)
        batch = together.view(many).copy()
        for b in range(3):
            own = slice(arrays[3][b], arrays[3][b + 1])
            alone.run(
                *(array[own] for array in arrays[:3]),
                np.array([0, lengths[b]], np.int32),
                arrays[4][b : b + 1],
                arrays[5][b : b + 1],
                np.array([lengths[b] - 1], np.int32),
            )
            np.testing.assert_array_equal(alone.view(one)[0], batch[b])


def test_a_prompt_in_chunks_gives_the_bits_of_the_prompt_at_once(isa: str, rng: np.random.Generator) -> None:
    whole, parts = CpuGraph(None, **LIMITS), CpuGraph(None, **LIMITS)
    logits, chunked = small_model(whole)[0], small_model(parts)[0]
    arrays = step([23], [0], rng)
    whole.run(*arrays)
    for begin, end in ((0, 1), (1, 9), (9, 10), (10, 23)):
        parts.run(
            *(array[begin:end] for array in arrays[:3]),
            np.array([0, end - begin], np.int32),
            np.array([end], np.int32),
            arrays[5],
            np.array([end - begin - 1], np.int32),
        )
    np.testing.assert_array_equal(parts.view(chunked), whole.view(logits))


def test_no_logits_may_be_wanted(rng: np.random.Generator) -> None:
    graph = CpuGraph(None, **LIMITS)
    logits = small_model(graph)[0]
    graph.run(*step([3], [0], rng, logits=[]))
    assert graph.view(logits).shape == (0, V)


def broken(name: str, place: Any, value: int) -> Any:
    names = ("ids", "positions", "kv_index", "q_start", "kv_len", "page_table", "logit_rows")
    return pytest.param(names.index(name), place, value, name, id=f"{name}={value}")


@pytest.mark.parametrize("kind", [CpuGraph, ReferenceGraph])
@pytest.mark.parametrize(
    ("array", "place", "value", "words"),
    [
        broken("ids", 1, V),
        broken("ids", 1, -1),
        broken("kv_index", 0, 3 * PAGES * PAGE),
        broken("kv_index", 0, -1),
        broken("q_start", 0, 1),
        broken("q_start", 1, 5),
        broken("q_start", 1, -3),
        broken("q_start", 2, 4),
        broken("kv_len", 0, PAGES * PAGE + 1),
        broken("kv_len", 0, -1),
        broken("page_table", (0, 0), 3 * PAGES),
        broken("page_table", (0, 0), -1),
        broken("logit_rows", 0, 3),
        broken("logit_rows", 0, -1),
    ],
)
def test_an_index_out_of_range_is_refused_before_anything_runs(
    kind: Any, array: int, place: Any, value: int, words: str, rng: np.random.Generator
) -> None:
    graph = kind(None, **LIMITS)
    small_model(graph)
    arrays = step([2, 1], [0, 0], rng)
    arrays[array][place] = value
    with pytest.raises(ValueError, match=words):
        graph.run(*arrays)


@pytest.mark.parametrize("kind", [CpuGraph, ReferenceGraph])
@pytest.mark.parametrize("position", [2, -1])
def test_a_position_outside_its_sequence_is_refused(
    kind: Any, position: int, rng: np.random.Generator
) -> None:
    graph = kind(None, **LIMITS)
    small_model(graph)
    arrays = step([2, 1], [0, 0], rng)
    arrays[1][1] = position
    with pytest.raises(ValueError, match=f"got {position}"):
        graph.run(*arrays)


@pytest.mark.parametrize("kind", [CpuGraph, ReferenceGraph])
def test_steps_over_the_limits_are_refused(kind: Any, rng: np.random.Generator) -> None:
    graph = kind(None, **LIMITS)
    small_model(graph)
    for lengths, starts, logits in (
        ([25], [0], None),
        ([1, 1, 1, 1], [0] * 4, None),
        ([6], [0], [0, 1, 2, 3, 4]),
    ):
        owner = len(lengths)
        arrays = step(lengths[:3], starts[:3], rng, logits)
        if owner == 4:
            arrays[4] = np.ones(4, np.int32)
            arrays[3] = np.array([0, 1, 2, 3, 3], np.int32)
            arrays[5] = np.zeros((4, PAGES), np.int32)
        with pytest.raises(ValueError, match="must lie in"):
            graph.run(*arrays)


@pytest.mark.parametrize("kind", [CpuGraph, ReferenceGraph])
def test_wrong_recordings_are_refused(kind: Any, rng: np.random.Generator) -> None:
    graph, other = kind(None, **LIMITS), kind(None, **LIMITS)
    x, wide, logits, foreign = graph.buffer(64), graph.buffer(96), graph.logit_buffer(64), other.buffer(64)
    weight = random_matrix("q4_0", 64, 64, rng)
    pages = np.zeros((4, G, C, PAGE), np.float32), np.zeros((4, G, PAGE, C), np.float32)
    for record in (
        lambda: graph.embedding(wide, weight),
        lambda: graph.embedding(logits, weight),
        lambda: graph.linear(x, wide, weight),
        lambda: graph.linear(foreign, x, weight),
        lambda: graph.linear(logits, x, weight),
        lambda: graph.linear(graph.buffer(64), x, weight, np.zeros(3, np.float32)),
        lambda: graph.rms_norm(x, x, np.zeros(3, np.float32), 1e-5),
        lambda: graph.head_rms_norm(x, 5, np.zeros(12, np.float32), 1e-5),
        lambda: graph.add(x, wide),
        lambda: graph.swiglu(x, x, wide),
        lambda: graph.rope(x, 3, 16, np.ones(8, np.float32)),
        lambda: graph.rope(x, 4, 16, np.ones(9, np.float32)),
        lambda: graph.kv_store(x, x, *pages),
        lambda: graph.attention(x, x, pages[1], pages[0], H, 1.0),
        lambda: graph.attention(x, x, *pages, 3, 1.0),
        lambda: graph.attention(x, x, *pages, H, 1.0, window=-1),
        lambda: graph.select_logit_rows(x, x),
        lambda: graph.buffer(0),
        lambda: graph.run(*step([1], [0], rng)),
        lambda: graph.view(x),
    ):
        with pytest.raises(ValueError):  # each call has its own words
            record()
    for record in (lambda: graph.linear(x, x, weight), lambda: graph.linear_add(x, x, weight)):
        with pytest.raises(ValueError, match="the product of a buffer cannot go to the buffer itself"):
            record()
    graph.finish()
    for record in (lambda: graph.buffer(3), lambda: graph.add(x, x), graph.finish):
        with pytest.raises(ValueError, match="finished"):
            record()


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_sequences", "max_logits", "page_size", "max_pages_per_sequence"]
)
def test_limits_and_precision_are_checked(name: str) -> None:
    for kind in (CpuGraph, ReferenceGraph):
        with pytest.raises(ValueError, match=name):
            kind(None, **{**LIMITS, name: 0})
        with pytest.raises(ValueError, match="precision"):
            kind(None, precision="f64", **LIMITS)


def test_the_graph_keeps_weights_and_pages_alive(rng: np.random.Generator) -> None:
    graph = CpuGraph(None, **LIMITS)
    logits = small_model(graph)[0]
    graph.run(*step([4], [0], rng))
    first = graph.view(logits).copy()
    trash = [np.full(10000, np.nan, np.float32) for _ in range(200)]
    graph.run(*step([4], [0], rng))
    np.testing.assert_array_equal(graph.view(logits), first)
    assert len(trash) == 200
    assert graph.num_bytes > 0


def test_arrays_of_the_wrong_type_or_order_are_refused(rng: np.random.Generator) -> None:
    graph = CpuGraph(None, **LIMITS)
    small_model(graph)
    arrays = step([2], [0], rng)
    for place, wrong in ((0, arrays[0].astype(np.int64)), (1, np.arange(4, dtype=np.int32)[::2]), (4, None)):
        with pytest.raises((ValueError, TypeError)):
            graph.run(*arrays[:place], wrong, *arrays[place + 1 :])


@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_experts_match_the_reference(isa: str, precision: str) -> None:
    recorded = []
    with Pool(3) as pool:
        for make in (ReferenceGraph, CpuGraph):
            rng = np.random.default_rng(9)
            graph: Any = make(pool, **LIMITS, precision=precision)
            x, logits, out = graph.buffer(D), graph.buffer(8), graph.buffer(D)
            graph.embedding(x, random_matrix("f32", V, D, rng))
            graph.linear(logits, x, random_matrix("f32", 8, D, rng))
            first = graph.route_topk(logits, 3, "sigmoid", True, 2.0, None, 4, 2)
            graph.expert_ffn(out, x, first, random_bank(rng, 8, D, F, ("q8_0", "q4_0")))
            graph.add(x, out, 0.25)
            second = graph.route_topk(logits, 2)
            bank = random_bank(rng, 8, D, 32, fused=False, biased=True)
            graph.expert_ffn(out, x, second, bank, "clamped", 1.0)
            graph.finish()
            recorded.append((graph, x, out, first, second))
        uses = np.zeros(9, np.int64)
        for lengths in ([20], [1], [3, 1, 8]):
            arrays = step(lengths, [0] * len(lengths), np.random.default_rng(len(lengths)))
            for graph, *_ in recorded:
                graph.run(*arrays)
            (slow, *theirs), (fast, *ours) = recorded
            for routing, other in zip(theirs[2:], ours[2:], strict=True):
                np.testing.assert_array_equal(fast.routed(other)[0], slow.routed(routing)[0])
            for buffer, other in zip(theirs[:2], ours[:2], strict=True):
                expected = slow.view(buffer)
                error = np.abs(fast.view(other) - expected).max() / np.abs(expected).max()
                assert error < TOLERANCE[precision]
            counts = np.bincount(fast.routed(ours[2])[0].reshape(-1), minlength=8)
            uses += [*counts, np.count_nonzero(counts)]
        np.testing.assert_array_equal(fast.expert_uses(ours[2]), uses)
        np.testing.assert_array_equal(slow.expert_uses(theirs[2]), uses)


@pytest.mark.parametrize("make", [ReferenceGraph, CpuGraph])
def test_experts_that_do_not_fit_are_refused(make: Any) -> None:
    rng = np.random.default_rng(2)
    graph, other = make(None, **LIMITS), make(None, **LIMITS)
    x, logits, narrow = graph.buffer(D), graph.buffer(8), graph.buffer(D - 32)
    routing = graph.route_topk(logits, 2)
    bank = random_bank(rng, 8, D, F)
    with pytest.raises(ValueError, match="num_chosen must lie in 1 to 8, got 9"):
        graph.route_topk(logits, 9)
    with pytest.raises(ValueError, match="the router has 8 experts, the bank 5"):
        graph.expert_ffn(x, x, routing, random_bank(rng, 5, D, F))
    with pytest.raises(ValueError, match=r"must be \[tokens, 64\]"):
        graph.expert_ffn(narrow, x, routing, bank)
    with pytest.raises(ValueError, match="the routing belongs to another graph"):
        other.expert_ffn(other.buffer(D), other.buffer(D), routing, bank)
    with pytest.raises(ValueError, match="the buffer belongs to another graph"):
        graph.route_topk(other.buffer(8), 2)
