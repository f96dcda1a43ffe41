"""Every family on the kernels of a card against transformers: a prompt, decode beside prefill, batches.

Without a card the kernels run in Triton's interpreter, so the whole recorded and fused program is tested
anywhere; on a card decode steps replay captured graphs.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices
from ftd.engine.model import Model
from tests.engine import test_model, tiny
from tests.engine.test_model import PROMPT, assert_close, run


def device() -> devices.Device:
    """Return the card, or the interpreter where there is none."""
    return devices.interpreter() if devices.missing_for_cuda() else devices.cuda()


# The interpreter takes seconds for each family: these stand for the others where time counts
QUICK = ("llama", "gemma3_text", "qwen3_moe")
QUICKEST = ("qwen3_moe",)


def cases() -> list[Any]:
    """Every family that a card has kernels for, most of them marked slow."""
    names = (*tiny.CASES, *tiny.MOE_CASES)
    return [pytest.param(name, marks=() if name in QUICKEST else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=cases())
def oracle(request: pytest.FixtureRequest) -> tiny.Tiny:
    """Every family."""
    return tiny.make(request.param)


@pytest.fixture(scope="module")
def models(oracle: tiny.Tiny) -> Callable[[str], Model]:
    """Builds the model in a precision, once."""

    def build(precision: str) -> Model:
        place = device()
        return test_model.build(oracle, place.make_graph, None, precision, place.make_pages)

    return functools.cache(build)


def assert_near(
    oracle: tiny.Tiny, ours: NDArray[np.float32], theirs: NDArray[np.float32], precision: str
) -> None:
    """Compare logits: each in f32; in bf16 on the whole, with room for tokens that choose another expert.

    Routers of random weights have many near ties; one flip moves a token's logits by a tenth of their spread.
    """
    if precision == "f32":
        assert_close(ours, theirs)
        return
    assert ours.shape == theirs.shape
    assert np.sqrt(np.mean((ours - theirs) ** 2)) <= (0.15 if oracle.banks else 0.03) * theirs.std()


@pytest.fixture
def on_card_or_quick(oracle: tiny.Tiny) -> None:
    """Leaves to a card what differs little between families: minutes in the interpreter for all of them."""
    if devices.missing_for_cuda() and oracle.architecture not in QUICK:
        pytest.skip("this family's other test is run here; this one on a card")


def test_prompt_then_decode_beside_another_prompt(models: Callable[[str], Model], oracle: tiny.Tiny) -> None:
    check_prompt(models, oracle, "f32")


@pytest.mark.slow
@pytest.mark.usefixtures("on_card_or_quick")
def test_the_same_in_bf16(models: Callable[[str], Model], oracle: tiny.Tiny) -> None:
    check_prompt(models, oracle, "fast")


def check_prompt(models: Callable[[str], Model], oracle: tiny.Tiny, precision: str) -> None:
    """A prompt, one id more, and another beside a second prompt."""
    model, ids = models(precision), PROMPT[:20]
    theirs = oracle.logits(ids)
    assert_near(oracle, run(model, [(0, ids[:18], 0)]), theirs[:18], precision)
    assert_near(oracle, run(model, [(0, [ids[18]], 18)]), theirs[18:19], precision)
    both = run(model, [(0, [ids[19]], 19), (1, ids[:5], 0)])
    assert_near(oracle, both, np.concatenate([theirs[19:], theirs[:5]]), precision)


@pytest.mark.slow
@pytest.mark.usefixtures("on_card_or_quick")
def test_three_sequences_decode_as_alone(models: Callable[[str], Model], oracle: tiny.Tiny) -> None:
    model = models("f32")
    prompts = [PROMPT[:3], PROMPT[10:27], PROMPT[30:31]]
    run(model, [(row, ids[:-1], 0) for row, ids in enumerate(prompts) if len(ids) > 1])
    together = run(model, [(row, ids[-1:], len(ids) - 1) for row, ids in enumerate(prompts)])
    assert_close(together, np.concatenate([oracle.logits(ids)[-1:] for ids in prompts]))


@pytest.mark.slow
@pytest.mark.usefixtures("on_card_or_quick")
def test_a_prompt_that_warms_up_leaves_nothing_behind(
    models: Callable[[str], Model], oracle: tiny.Tiny
) -> None:
    model, ids = models("f32"), PROMPT[:6]
    first = run(model, [(0, ids[:5], 0)])
    graph: Any = model.graph
    for num_tokens in (17, 33, 100_000):
        graph._runner.warm(num_tokens)
    assert_close(first, oracle.logits(ids)[:5])
    assert_close(run(model, [(0, ids[5:], 5)]), oracle.logits(ids)[5:])
