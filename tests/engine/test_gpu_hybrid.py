"""Families with recurrent layers on the kernels of a card against transformers: prompts, decode, batches.

Without a card the kernels run in Triton's interpreter; on one, decode steps replay captured graphs.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices
from ftd.engine.model import Model
from tests.engine import hybrid
from tests.engine.serving import Serving, write_ftw
from tests.engine.test_gpu_model import device
from tests.engine.test_hybrid import IDS, assert_close, build, run
from tests.engine.tiny import Tiny

pytestmark = pytest.mark.slow  # the interpreter takes many seconds for each model


@pytest.fixture(scope="module", params=hybrid.CASES)
def oracle(request: pytest.FixtureRequest) -> Tiny:
    """Every family."""
    return hybrid.make(request.param)


def made(oracle: Tiny, precision: str) -> Model:
    """Return the model on the card, or in the interpreter."""
    place = device()
    return build(oracle, place.make_graph, None, precision, place.make_pages)


def test_prompts_in_steps_and_beside_others(oracle: Tiny) -> None:
    model = made(oracle, "f32")
    theirs = oracle.logits(IDS[:20])
    start = 0
    for count in (17, 1):
        (ours,) = run(model, [(2, IDS[start : start + count], start)])
        assert_close(ours, theirs[start : start + count])
        start += count
    beside = run(model, [(2, IDS[18:19], 18), (3, IDS[:2], 0), (5, IDS[40:41], 0)])
    wanted = [theirs[18:19], theirs[:2], oracle.logits(IDS[40:41])]
    assert_close(np.concatenate(beside), np.concatenate(wanted))
    together = run(model, [(row, [IDS[at]], at) for row, at in ((2, 19), (3, 2))])
    assert_close(np.concatenate(together), theirs[[19, 2]])


@pytest.mark.parametrize("case", hybrid.CASES)
def test_the_fast_path_is_near(case: str) -> None:
    # All experts are chosen: bf16 may choose the other of two all but equal ones, and the state remembers
    oracle = hybrid.make(case, **({} if case == "qwen3_5" else {"num_experts_per_tok": 8}))
    (ours,) = run(made(oracle, "fast"), [(2, IDS[:10], 0)])
    theirs = oracle.logits(IDS[:10])
    assert np.sqrt(np.mean((ours - theirs) ** 2)) <= 0.05 * theirs.std()


def test_long_prompts_in_chunks(oracle: Tiny) -> None:
    model, theirs = made(oracle, "f32"), oracle.logits(IDS[:110])
    (ours,) = run(model, [(2, IDS[:90], 0)])
    assert_close(ours, theirs[:90])
    (ours, beside) = run(model, [(2, IDS[90:110], 90), (4, IDS[:40], 0)])
    assert_close(ours, theirs[90:])
    assert_close(beside, theirs[:40])


@pytest.mark.gpu
@pytest.mark.parametrize("case", hybrid.CASES)
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_long_texts_cold_and_warm(case: str, precision: str, tmp_path: Path) -> None:
    """64 greedy ids after a prompt of 150: as the processor's in f32; with what is cached as without."""
    load = msgspec.structs.replace(write_ftw(hybrid.make(case), tmp_path), context_tokens=256)
    card = msgspec.structs.replace(load, device="cuda", precision=precision)
    cold = Serving(card)
    texts = []
    for serving in (cold, Serving(card), Serving(load)):
        if serving is not cold:
            prefix = serving.start(IDS[:70], max_tokens=8)
            serving.run()
            assert len(serving.tokens(prefix)) == 8
            # the second prompt with a prefix leaves its state, the third goes on with it
            serving.start([*IDS[:100], 5, 6], max_tokens=4)
            serving.run()
        request = serving.start(IDS[:150], max_tokens=64)
        serving.run()
        texts.append(serving.tokens(request))
        serving.close()
    assert len(texts[0]) == 64
    assert texts[0] == texts[1]
    if precision == "f32":
        assert texts[0] == texts[2]


def test_texts_and_kept_states_are_those_of_the_processor(tmp_path: Path) -> None:
    load = write_ftw(hybrid.make("qwen3_5"), tmp_path)
    card = "interpreter" if devices.missing_for_cuda() else "cuda"
    texts = []
    for serving in (Serving(load), Serving(msgspec.structs.replace(load, device=card))):
        first = [serving.start(ids, max_tokens=3) for ids in ([5, 9, 2], IDS[:20])]
        serving.run()
        again = serving.start([*IDS[:20], *serving.tokens(first[1]), 7, 8], max_tokens=3)
        serving.run()
        texts.append([serving.tokens(each) for each in (*first, again)])
        serving.close()
    assert texts[0] == texts[1]
