"""A window that grows on a card: texts of a fresh load, and nothing is read from the disk again.

Without a card the kernels run in Triton's interpreter, in f32 so that the two agree in every id.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices, expert_plan
from ftd.engine.messages import Load
from ftd.errors import InvalidRequest, OutOfMemory
from ftd.ftw import direct
from tests.engine import tiny
from tests.engine.serving import Serving, write_ftw

DEVICE = "cuda" if devices.missing_for_cuda() is None else "interpreter"
WARM = ([5, 9, 2], [7, 7, 31, 8])
PROMPT = [5, 9, 2, 40, 41]


def grown(serving: Serving, load: Load, context_tokens: int) -> Load:
    """Make the window of ``serving`` larger; return what a fresh load would be."""
    larger = msgspec.structs.replace(load, context_tokens=context_tokens)
    serving.engine = serving.engine.grown(larger)
    return larger


def text(serving: Serving) -> list[int]:
    """Return what the prompt gets."""
    request = serving.start(PROMPT, max_tokens=4)
    serving.run()
    return serving.tokens(request)


def no_reads(descriptor: int, target: memoryview, start: int, name: str) -> None:
    """Stand in for the disk."""
    raise AssertionError(f"{name} is read again")


@pytest.mark.slow
def test_a_dense_model_grows_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = msgspec.structs.replace(write_ftw(tiny.make("llama"), tmp_path), device=DEVICE)
    card = Serving(load)
    text(card)
    store = card.engine._placed.on_device
    before = store.num_bytes
    with monkeypatch.context() as patched:
        patched.setattr(direct, "read_run", no_reads)
        larger = grown(card, load, 200)
    assert card.engine.plan.context_tokens == 200 and card.engine.read_bytes == 0
    assert card.engine._placed.on_device is store and store.num_bytes == before
    fresh = Serving(larger)
    assert text(card) == text(fresh)
    card.close()
    fresh.close()


@pytest.mark.slow
def test_slots_give_way_and_the_hottest_experts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = msgspec.structs.replace(
        write_ftw(tiny.make("qwen3_moe"), tmp_path), device=DEVICE, experts="split=0.5", num_threads=2
    )
    slots = iter((6, 3, 3))
    monkeypatch.setattr(expert_plan, "all_fit", lambda needs, free_bytes, part: False)
    monkeypatch.setattr(expert_plan, "num_slots", lambda needs, free_bytes, part: next(slots))
    card = Serving(load)
    for ids in WARM:
        card.start(ids, max_tokens=3)
        card.run()
    score = card.engine._experts.pool.state.score.cpu().numpy().copy()
    with monkeypatch.context() as patched:
        patched.setattr(direct, "read_run", no_reads)
        larger = grown(card, load, 200)
    pool = card.engine._experts.pool
    owners = pool.state.owner_of.cpu().numpy()
    assert len(owners) == 3 and sorted(score[owners]) == sorted(np.sort(score)[-3:])
    for slot, owner in enumerate(owners):
        bank = pool._banks[owner // pool.config.num_experts]
        np.testing.assert_array_equal(
            pool._slots[slot].cpu().numpy(), bank[owner % pool.config.num_experts].numpy()
        )
    fresh = Serving(larger)
    assert text(card) == text(fresh)
    card.close()
    fresh.close()


def test_experts_that_no_longer_fit_are_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = msgspec.structs.replace(write_ftw(tiny.make("mixtral"), tmp_path), device=DEVICE)
    card = Serving(load)
    monkeypatch.setattr(expert_plan, "all_fit", lambda needs, free_bytes, part: False)
    with pytest.raises(OutOfMemory, match="keep all experts there"):
        grown(card, load, 200)
    card.close()


def test_a_window_does_not_grow_under_a_request(tmp_path: Path) -> None:
    load = msgspec.structs.replace(write_ftw(tiny.make("llama"), tmp_path), device=DEVICE)
    card = Serving(load)
    card.start(PROMPT, max_tokens=4)
    with pytest.raises(InvalidRequest, match="between requests"):
        grown(card, load, 200)
    card.close()
