"""Families with recurrent layers against transformers in float32 on tiny random weights.

A text must not show where its steps ended, who ran beside it or what was cached: those are compared with the
text alone and whole, bit for bit.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine import model_config
from ftd.engine.model import Model
from ftd.engine.weights import Weights
from ftd.errors import InvalidFtw, Unsupported
from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._pool import Pool
from ftd.kernels.reference_graph import ReferenceGraph
from tests.engine import hybrid, moe, steps
from tests.engine.serving import Serving, write_ftw
from tests.engine.tiny import Tiny, matrix, q8_0

PAGE_SIZE, MAX_PAGES, MAX_SEQUENCES = 16, 18, 8
# Largest error relative to the spread of the logits
TOLERANCE = 1e-4
IDS = [int(value) for value in np.random.default_rng(7).integers(0, 160, 257)]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two worker threads."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module", params=hybrid.CASES)
def oracle(request: pytest.FixtureRequest) -> Tiny:
    """Every family."""
    return hybrid.make(request.param)


@pytest.fixture(scope="module")
def models(oracle: Tiny, pool: Pool) -> Callable[[str], Model]:
    """Builds the engine's model at a precision, once."""
    return functools.cache(lambda precision: build(oracle, CpuGraph, pool, precision))


def build(
    oracle: Tiny, make_graph: Any, pool: Any, precision: str = "f32", make_pages: Any = np.zeros
) -> Model:
    """Build the engine's model of ``oracle`` with room for eight sequences."""
    weights = Weights(oracle.tensors, oracle.banks)
    model = Model(
        model_config.make(oracle.architecture, oracle.hyperparameters),
        weights,
        make_graph,
        pool,
        num_pages=MAX_SEQUENCES * MAX_PAGES,
        page_size=PAGE_SIZE,
        max_pages_per_sequence=MAX_PAGES,
        max_tokens=600,
        max_sequences=MAX_SEQUENCES,
        max_logits=600,
        precision=precision,
        make_pages=make_pages,
        num_state_slots=MAX_SEQUENCES + 2,
    )
    assert weights.unused() == []
    return model


def run(
    model: Model, parts: list[tuple[int, list[int], int]], last_only: bool = False
) -> list[NDArray[np.float32]]:
    """Run one step of ``(row, new ids, tokens before)`` for each sequence; return each one's logits.

    last_only: those of its last token, as an engine asks for them.
    """
    counts = [len(ids) for _, ids, _ in parts]
    table = np.array([[row + MAX_SEQUENCES * i for i in range(MAX_PAGES)] for row, _, _ in parts], np.int32)
    model.run(
        *steps.arrays(parts, table, PAGE_SIZE),
        np.cumsum(counts, dtype=np.int32) - np.int32(1)
        if last_only
        else np.arange(sum(counts), dtype=np.int32),
        np.array([(row * 3 + 1) % (MAX_SEQUENCES + 2) for row, _, _ in parts], np.int32),
    )
    return np.split(model.logits.copy(), range(1, len(parts)) if last_only else np.cumsum(counts)[:-1])


def in_steps(model: Model, row: int, ids: list[int], cuts: list[int]) -> NDArray[np.float32]:
    """Return the logits of ``ids`` run alone in steps of ``cuts`` tokens."""
    parts, start = [], 0
    for count in cuts:
        parts += run(model, [(row, ids[start : start + count], start)])
        start += count
    assert start == len(ids)
    return np.concatenate(parts)


def assert_close(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Compare logits relative to their spread."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= TOLERANCE * theirs.std()


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 65, 257])
def test_whole_prompts(models: Callable[[str], Model], oracle: Tiny, length: int) -> None:
    model = models("f32")
    (ours,) = run(model, [(2, IDS[:length], 0)])
    assert_close(ours, oracle.logits(IDS[:length]))
    np.testing.assert_allclose(model.hidden, oracle.hidden(IDS[:length]), atol=1e-4)


def test_the_reference_graph(oracle: Tiny) -> None:
    model = build(oracle, ReferenceGraph, None)
    assert_close(in_steps(model, 1, IDS[:50], [20, 1, 29]), oracle.logits(IDS[:50]))


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("cuts", [[1] * 40, [16, 16, 8], [17, 1, 1, 21], [3, 37]])
def test_where_steps_end_does_not_show(
    models: Callable[[str], Model], precision: str, cuts: list[int]
) -> None:
    model = models(precision)
    whole = in_steps(model, 0, IDS[:40], [40])
    np.testing.assert_array_equal(in_steps(model, 5, IDS[:40], cuts), whole)


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("count", [3, 8])
def test_a_batch_of_mixed_lengths_is_each_alone(
    models: Callable[[str], Model], precision: str, count: int
) -> None:
    model = models(precision)
    texts = [IDS[i : i + 5 + 17 * i] for i in range(count)]
    alone = [in_steps(model, 0, ids, [len(ids)])[-3:] for ids in texts]
    run(model, [(row, ids[:-3], 0) for row, ids in enumerate(texts)])
    for i in range(3):  # decode, in an order that changes
        rows = sorted(range(count), key=lambda row: (row * 5 + i) % count)
        step = [(row, [texts[row][i - 3]], len(texts[row]) - 3 + i) for row in rows]
        for row, logits in zip(rows, run(model, step), strict=True):
            np.testing.assert_array_equal(logits[0], alone[row][i])


def quantized(model: Tiny) -> Tiny:
    """Round the matrices of ``model`` that transformers has in the same layout to q8_0, there alike."""
    import torch

    tensors, state = dict(model.tensors), model.oracle.state_dict()
    for name, tensor in model.tensors.items():
        rows, columns = tensor.shape
        if rows > 1 and columns % 32 == 0 and name in state and tuple(state[name].shape) == (rows, columns):
            tensors[name] = rounded = q8_0(tensor.planes[0].astype(np.float32))
            codes, scales = rounded.planes
            exact = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=1)
            state[name].copy_(torch.from_numpy(exact))
    banks = moe.requantized("qwen3_moe", model.oracle, model.banks, q8_0)
    return Tiny(model.architecture, model.hyperparameters, tensors, model.oracle, banks)


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_quantised_weights(case: str, precision: str, pool: Pool) -> None:
    # Rounded activations would choose another expert where two are all but equal: here, all are chosen.
    model = quantized(hybrid.make(case, **({"num_experts_per_tok": 8} if case == "qwen3_5_moe" else {})))
    assert sum(tensor.format == "q8_0" for tensor in model.tensors.values()) > 12
    (ours,) = run(build(model, CpuGraph, pool, precision), [(0, IDS[:60], 0)])
    theirs = model.logits(IDS[:60])
    cosine = (ours * theirs).sum() / np.sqrt(np.square(ours).sum() * np.square(theirs).sum())
    # Random weights amplify what is rounded; a trained model keeps 0.9999 (test_trained).
    assert cosine >= (0.999999 if precision == "f32" else 0.995)


def test_tiled_value_heads_are_the_same_model_in_another_order(pool: Pool) -> None:
    """What GGUF does: head h of r per key head becomes (h % r) * Hk + h // r in all that has value heads."""
    model = hybrid.make("qwen3_5")
    heads, channels = hybrid.SHARED["linear_num_value_heads"], hybrid.SHARED["linear_value_head_dim"]
    keys = 2 * hybrid.SHARED["linear_num_key_heads"] * hybrid.SHARED["linear_key_head_dim"]
    order = np.arange(heads).reshape(2, -1).T.reshape(-1)
    rows = (order[:, None] * channels + np.arange(channels)).reshape(-1)
    places: dict[str, Any] = {
        "in_proj_qkv.weight": (np.concatenate([np.arange(keys), keys + rows]), slice(None)),
        "conv1d.weight": (np.concatenate([np.arange(keys), keys + rows]), slice(None)),
        "in_proj_z.weight": (rows, slice(None)),
        "out_proj.weight": (slice(None), rows),
        "in_proj_a.weight": (order, slice(None)),
        "in_proj_b.weight": (order, slice(None)),
        "A": (slice(None), order),
        "dt_bias": (slice(None), order),
    }
    tensors = {
        name: matrix(tensor.planes[0][places[last]])
        if "linear_attn" in name and (last := name.partition("linear_attn.")[2]) in places
        else tensor
        for name, tensor in model.tensors.items()
    }
    tiled = Tiny(
        model.architecture, model.hyperparameters | {"linear_heads_tiled": True}, tensors, model.oracle
    )
    (ours,) = run(build(tiled, CpuGraph, pool), [(0, IDS[:60], 0)])
    assert_close(ours, model.logits(IDS[:60]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> tuple[Tiny, Any]:
    """A model with experts, and the message that loads it with pages and states for few."""
    model = hybrid.make("qwen3_5_moe", max_position_embeddings=512)
    return model, write_ftw(model, tmp_path_factory.mktemp("hybrid"))


def greedy(model: Tiny, prompt: list[int], text: list[int]) -> list[int]:
    """Return what transformers says at each place of ``text`` after ``prompt``, given all before it."""
    chosen: list[int] = model.logits(prompt + text).argmax(axis=1).tolist()
    return chosen[len(prompt) - 1 : -1]


def test_greedy_text_cold_warm_and_beside_others(served: tuple[Tiny, Any]) -> None:
    import msgspec

    model, load = served
    serving = Serving(msgspec.structs.replace(load, context_tokens=256))
    try:
        prompts = [IDS[:75], IDS[:40] + IDS[100:150], IDS[5:9]]
        cold = [serving.start(prompt, max_tokens=64) for prompt in prompts]
        serving.run()
        texts = [serving.tokens(request) for request in cold]
        for prompt, text in zip(prompts, texts, strict=True):
            assert text == greedy(model, prompt, text) and len(text) == 64
        warm = [serving.start(prompt, max_tokens=64) for prompt in prompts]
        serving.run()
        assert [serving.tokens(request) for request in warm] == texts
        assert [serving.finished(request).cached_tokens for request in warm] == [64, 64, 0]
        turn = serving.start(prompts[0] + texts[0] + IDS[:20], max_tokens=8)
        serving.run()
        assert serving.finished(turn).cached_tokens == 128
        assert serving.tokens(turn) == greedy(model, prompts[0] + texts[0] + IDS[:20], serving.tokens(turn))
    finally:
        serving.close()


def test_little_memory_preempts_and_the_text_stays(served: tuple[Tiny, Any]) -> None:
    import msgspec

    model, load = served
    bytes_per_token = 4 * 2 * 1 * 2 * 32  # f32, K and V of one layer, two heads of 32
    few = msgspec.structs.replace(load, context_tokens=96, kv_bytes=5 * 32 * bytes_per_token)
    serving = Serving(few)
    try:
        assert serving.engine.plan.num_pages == 5
        prompts = [IDS[10 * i : 10 * i + 30 + 7 * i] for i in range(4)]
        requests = [serving.start(prompt, max_tokens=40) for prompt in prompts]
        serving.run()
        for request, prompt in zip(requests, prompts, strict=True):
            text = serving.tokens(request)
            assert text == greedy(model, prompt, text) and len(text) == 40
        assert serving.engine.stats().pages_live == 0
    finally:
        serving.close()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_many_get_together_each_gets_alone(served: tuple[Tiny, Any], precision: Any, seed: int) -> None:
    """Prompts with common beginnings that come and go, with few pages and states."""
    import msgspec

    rng = np.random.default_rng(seed)
    _, load = served
    load = msgspec.structs.replace(load, context_tokens=160, precision=precision, max_sequences=3)
    roots = [[int(value) for value in rng.integers(0, 160, 100)] for _ in range(3)]
    requests = []
    for _ in range(24):
        root = roots[rng.integers(len(roots))][: rng.integers(1, 100)]
        prompt = root + [int(value) for value in rng.integers(0, 160, rng.integers(0, 20))]
        requests.append((prompt, int(rng.integers(1, 40))))
        if rng.random() < 0.3:
            roots[rng.integers(len(roots))] = prompt + [int(value) for value in rng.integers(0, 160, 30)]
    alone, together = Serving(load), Serving(msgspec.structs.replace(load, kv_bytes=9 * 32 * 512))
    try:
        expected, got = [], []
        for i, (prompt, count) in enumerate(requests):
            request = alone.start(prompt, max_tokens=count, cache_salt=str(i))
            alone.run()
            expected.append(alone.tokens(request))
            got.append(together.start(prompt, max_tokens=count))
            together.run(int(rng.integers(0, 30)))
            if rng.random() < 0.2:
                doomed = together.start(roots[0][:90], max_tokens=30)
                together.run(int(rng.integers(0, 6)))
                together.engine.cancel(doomed)
        together.run()
        assert [together.tokens(request) for request in got] == expected
        assert sum(together.finished(request).cached_tokens for request in got) > 0
        assert together.engine.stats().pages_live == 0
    finally:
        alone.close()
        together.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"layer_types": ["linear_attention"] * 4}, Unsupported, "without a layer of attention"),
        ({"layer_types": ["linear_attention"] * 3}, InvalidFtw, "3 of 4"),
        ({"linear_num_value_heads": 3}, InvalidFtw, "multiple of linear_num_key_heads: 3, 2"),
        ({"linear_conv_kernel_dim": 1}, InvalidFtw, "linear_conv_kernel_dim"),
        ({"linear_conv_kernel_dim": 17}, InvalidFtw, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 1 << 20}, InvalidFtw, "linear_key_head_dim"),
        ({"linear_num_key_heads": None}, InvalidFtw, "linear_num_key_heads"),
        ({"linear_heads_tiled": 1}, InvalidFtw, "linear_heads_tiled"),
    ],
)
def test_configs_that_cannot_be(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model_config.make("qwen3_5", hybrid.SHARED | changes)


def test_missing_and_misshapen_tensors_are_refused_by_name(pool: Pool) -> None:
    model = hybrid.make("qwen3_5")
    for name in ("linear_attn.A", "linear_attn.conv1d.weight", "linear_attn.norm.weight"):
        full = f"model.layers.1.{name}"
        for tensor in (None, matrix(np.zeros((3, 5), np.float32))):
            tensors = {key: value for key, value in model.tensors.items() if key != full}
            tensors |= {full: tensor} if tensor is not None else {}
            broken = Tiny(model.architecture, model.hyperparameters, tensors, model.oracle)
            with pytest.raises(InvalidFtw, match=full.replace(".", r"\.")):
                build(broken, CpuGraph, pool)
