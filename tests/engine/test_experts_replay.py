"""Replayed texts against the engine that is given them as prompts, and slots that are put back."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices, expert_plan
from ftd.engine.batch import Batch
from ftd.engine.choosing import Choices
from ftd.engine.messages import Load
from tests.engine import tiny
from tests.engine.serving import Serving, write_ftw

PROMPTS = ([5, 9, 2], [7, 7, 31, 8])
# What no model of random weights says by itself
TEXTS = ([40, 3, 77, 15], [8, 8, 64, 2])
CARD = "interpreter" if devices.missing_for_cuda() else "cuda"


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the script."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import experts_replay  # type: ignore[import-not-found]

    yield experts_replay
    del sys.modules["experts_replay"]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A tiny mixture of experts as files."""
    return write_ftw(tiny.make("qwen3_moe"), tmp_path_factory.mktemp("model"))


def greedy(serving: Serving, prompts: Iterable[list[int]], max_tokens: int) -> list[list[int]]:
    """Return what the prompts get side by side."""
    requests = [serving.start(ids, max_tokens=max_tokens) for ids in prompts]
    serving.run()
    return [serving.tokens(request) for request in requests]


@pytest.mark.parametrize("device", ["cpu", pytest.param(CARD, marks=pytest.mark.slow)])
def test_forced_ids_are_what_the_model_reads(
    replay: Any, load: Load, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    serving = Serving(msgspec.structs.replace(load, device=device))
    read = [prompt + text[:-1] for prompt, text in zip(PROMPTS, TEXTS, strict=True)]
    wanted = [ids[0] for ids in greedy(serving, read, 1)]
    forced = replay.Replay(serving.engine)
    scheduler = serving.engine._scheduler
    ahead: list[Batch | None] = []
    choose_ahead = scheduler.schedule_ahead
    monkeypatch.setattr(scheduler, "schedule_ahead", lambda: ahead.append(choose_ahead()) or ahead[-1])
    sampled: list[list[int]] = []
    replaced = replay._replaced

    def keep(choices: Choices, ids: list[int]) -> Choices:
        sampled.append(choices.ids)
        return cast(Choices, replaced(choices, ids))

    monkeypatch.setattr(replay, "_replaced", keep)
    requests = [serving.start(ids, max_tokens=len(TEXTS[0])) for ids in PROMPTS]
    for request, text in zip(requests, TEXTS, strict=True):
        forced.force(request, text)
    serving.run()
    assert [serving.tokens(request) for request in requests] == list(TEXTS)
    # The model read what was forced, on a card where its own choice would have been read: the last id that
    # it chose is the one that follows these texts as prompts
    assert sampled[-1] == wanted and sampled[-1] != [text[-1] for text in TEXTS]
    assert any(ahead) == (device == CARD)
    if device == "cpu":  # in the interpreter it takes its time and says the same
        assert [ids[0] for ids in greedy(serving, read, 1)] == wanted
    serving.close()


@pytest.mark.slow
def test_slots_are_put_back(replay: Any, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_plan, "all_fit", lambda needs, free_bytes, part: False)
    monkeypatch.setattr(expert_plan, "num_slots", lambda needs, free_bytes, part: 5)
    serving = Serving(msgspec.structs.replace(load, device=CARD, experts="fill"))
    pool = serving.engine._experts.pool  # type: ignore[union-attr]
    kept = replay.Slots.of(pool)
    owners, records = pool.state.owner_of.clone(), pool._slots[:5].clone()
    serving.start(PROMPTS[0], max_tokens=3)
    serving.run()
    assert not torch.equal(pool.state.owner_of, owners) and not torch.equal(pool._slots[:5], records)
    kept.put_back()
    assert torch.equal(pool.state.owner_of, owners) and torch.equal(pool._slots[:5], records)
    assert pool.counters()["uses"] == 0
    serving.close()
