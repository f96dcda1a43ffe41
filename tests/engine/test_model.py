"""Every family against transformers in float32 on tiny random weights: whole prompts, chunks, batches."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine import model_config
from ftd.engine.model import Model
from ftd.engine.weights import Weights
from ftd.errors import InvalidFtw
from ftd.kernels._pool import Pool
from ftd.kernels.reference_graph import ReferenceGraph
from tests.engine import moe, steps, tiny

PAGE_SIZE = 16
MAX_PAGES = 5
IMPLEMENTATIONS = ("reference", "cython")
# Largest error relative to the spread of the logits. The fast path rounds activations to 8 bits, K and V to
# half precision.
TOLERANCE = {"f32": 2.5e-4, "fast": 0.12}
PROMPT = [int(value) for value in np.random.default_rng(7).integers(0, tiny.SIZES["vocab_size"], 70)]


def graph_class(implementation: str) -> Any:
    """Return the graph of an implementation; skip where it is not built."""
    if implementation == "reference":
        return ReferenceGraph
    return pytest.importorskip("ftd.kernels._graph_cy", reason="run scripts/build").CpuGraph


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two worker threads."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module", params=[*tiny.CASES, *tiny.MOE_CASES])
def oracle(request: pytest.FixtureRequest) -> tiny.Tiny:
    """Every family."""
    return tiny.make(request.param)


@pytest.fixture(scope="module")
def models(oracle: tiny.Tiny, pool: Pool) -> Callable[[str], Model]:
    """Builds the engine's model on each implementation, once."""
    return functools.cache(lambda implementation: build(oracle, graph_class(implementation), pool))


def build(
    oracle: tiny.Tiny,
    make_graph: Any = ReferenceGraph,
    pool: Any = None,
    precision: str = "f32",
    make_pages: Any = np.zeros,
) -> Model:
    """Build the engine's model of ``oracle`` with room for four sequences."""
    config = model_config.make(oracle.architecture, oracle.hyperparameters)
    return Model(
        config,
        Weights(oracle.tensors, oracle.banks),
        make_graph,
        pool,
        num_pages=4 * MAX_PAGES,
        page_size=PAGE_SIZE,
        max_pages_per_sequence=MAX_PAGES,
        max_tokens=4 * 70,
        max_sequences=4,
        max_logits=4 * 70,
        precision=precision,
        make_pages=make_pages,
    )


def run(model: Model, parts: list[tuple[int, list[int], int]]) -> NDArray[np.float32]:
    """Run one step of ``(row of pages, new ids, tokens before)`` for each sequence; return all logits."""
    table = np.array(
        [[(row * MAX_PAGES + i) * 7 % (4 * MAX_PAGES) for i in range(MAX_PAGES)] for row, _, _ in parts],
        np.int32,
    )
    ids, *rest = steps.arrays(parts, table, PAGE_SIZE)
    model.run(ids, *rest, np.arange(len(ids), dtype=np.int32))
    return model.logits.copy()


def assert_close(ours: NDArray[np.float32], theirs: NDArray[np.float32], precision: str = "f32") -> None:
    """Compare logits relative to their spread."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= TOLERANCE[precision] * theirs.std()


def test_the_comparison_can_fail() -> None:
    theirs = np.random.default_rng(0).standard_normal((3, 160)).astype(np.float32)
    ours = theirs.copy()
    ours[1, 5] += 0.01
    with pytest.raises(AssertionError):
        assert_close(ours, theirs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_whole_prompt(models: Callable[[str], Model], oracle: tiny.Tiny, implementation: str) -> None:
    model = models(implementation)
    assert_close(run(model, [(0, PROMPT, 0)]), oracle.logits(PROMPT))
    np.testing.assert_allclose(model.hidden, oracle.hidden(PROMPT), atol=1e-4)


@pytest.mark.parametrize(
    ("implementation", "chunk"), [("reference", 17), *(("cython", chunk) for chunk in (1, 7, 16, 17))]
)
def test_chunked_prefill(
    models: Callable[[str], Model], oracle: tiny.Tiny, implementation: str, chunk: int
) -> None:
    starts = range(0, len(PROMPT), chunk)
    model = models(implementation)
    ours = np.concatenate([run(model, [(1, PROMPT[start : start + chunk], start)]) for start in starts])
    assert_close(ours, oracle.logits(PROMPT))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_mixed_batch_equals_its_sequences(
    models: Callable[[str], Model], oracle: tiny.Tiny, implementation: str
) -> None:
    model = models(implementation)
    prompts = [PROMPT[:33], PROMPT[5:6], PROMPT[10:27], PROMPT[20:]]
    done = [32, 0, 5, 16]
    run(model, [(row, prompt[:n], 0) for row, (prompt, n) in enumerate(zip(prompts, done, strict=True)) if n])
    ours = run(
        model, [(row, prompt[n:], n) for row, (prompt, n) in enumerate(zip(prompts, done, strict=True))]
    )
    theirs = np.concatenate([oracle.logits(p)[n:] for p, n in zip(prompts, done, strict=True)])
    assert_close(ours, theirs)


def test_glm_may_have_no_norms_of_heads() -> None:
    """As GLM 4.5 Air, whose larger sister has them."""
    oracle = tiny.make("glm4_moe", use_qk_norm=False)
    assert not any("q_norm" in name for name in oracle.tensors)
    assert_close(run(build(oracle), [(0, PROMPT, 0)]), oracle.logits(PROMPT))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_quantised_weights(pool: Pool, implementation: str, precision: str) -> None:
    oracle = tiny.quantized(tiny.make("qwen3"))
    model = build(oracle, graph_class(implementation), pool, precision)
    ours = np.concatenate([run(model, [(0, PROMPT[:40], 0)]), run(model, [(0, PROMPT[40:], 40)])])
    assert_close(ours, oracle.logits(PROMPT), precision)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize(
    ("case", "experts"), [("gpt_oss", moe.mxfp4), ("qwen3_moe", tiny.q8_0), ("deepseek_v3", tiny.q8_0)]
)
def test_quantised_experts(
    pool: Pool, implementation: str, precision: str, case: str, experts: Callable[[Any], Any]
) -> None:
    # Rounded activations would choose another expert where two are all but equal: there, all are chosen.
    changes = {"num_experts_per_tok": 8} if precision == "fast" else {}
    if precision == "fast" and "n_group" in tiny.MOE_CASES[case]:
        changes["topk_group"] = tiny.MOE_CASES[case]["n_group"]
    oracle = tiny.quantized(tiny.make(case, **changes), experts)
    model = build(oracle, graph_class(implementation), pool, precision)
    ours = np.concatenate([run(model, [(0, PROMPT[:40], 0)]), run(model, [(0, PROMPT[40:], 40)])])
    assert_close(ours, oracle.logits(PROMPT), precision)


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("case", ["llama", "qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v32"])
def test_no_bit_depends_on_what_shares_the_step(pool: Pool, case: str, precision: str) -> None:
    model = build(tiny.quantized(tiny.make(case)), graph_class("cython"), pool, precision)
    whole = run(model, [(0, PROMPT, 0)])
    for chunk in (1, 7, 33):
        starts = range(0, len(PROMPT), chunk)
        parts = [run(model, [(1, PROMPT[start : start + chunk], start)]) for start in starts]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    together = run(model, [(2, PROMPT[:9], 0), (3, PROMPT, 0), (1, PROMPT[50:], 50)])
    np.testing.assert_array_equal(together, np.concatenate([whole[:9], whole, whole[50:]]))


def test_a_missing_or_misshapen_tensor_is_named() -> None:
    oracle = tiny.make("qwen2")
    name = "model.layers.1.self_attn.k_proj.bias"
    whole = dict(oracle.tensors)
    del oracle.tensors[name]
    with pytest.raises(InvalidFtw, match=name):
        build(oracle)
    oracle.tensors[name] = tiny.matrix(np.zeros(31, np.float32))
    with pytest.raises(InvalidFtw, match=rf"{name} must be \[1, 32\]: \[1, 31\]"):
        build(oracle)
    assert set(whole) == set(oracle.tensors)


def test_routing_is_counted() -> None:
    oracle = tiny.make("qwen3_moe")
    model = build(oracle)
    run(model, [(0, PROMPT, 0)])
    uses = model.expert_uses()
    assert sorted(uses) == [0, 2]
    for layer, ids in model.routed().items():
        assert ids.shape == (len(PROMPT), 3)
        np.testing.assert_array_equal(uses[layer][:8], np.bincount(ids.reshape(-1), minlength=8))
        assert uses[layer][8] == np.count_nonzero(uses[layer][:8])


def test_experts_that_do_not_fit_are_named() -> None:
    oracle = tiny.make("mixtral")
    with pytest.raises(InvalidFtw, match="no experts of layer 2"):
        build(tiny.Tiny("mixtral", oracle.hyperparameters, oracle.tensors, None, oracle.banks[:2]))
    fewer = oracle.hyperparameters | {"num_local_experts": 3}
    with pytest.raises(InvalidFtw, match=r"mlp.gate.weight must be \[3, 64\]: \[4, 64\]"):
        build(tiny.Tiny("mixtral", fewer, oracle.tensors, None, oracle.banks))
