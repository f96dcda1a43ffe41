"""A pool of few slots against all experts resident: the same logits from any policy and number of slots."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices
from ftd.engine.expert_cache import EPOCH_HALF_LIVES, Clock
from ftd.engine.model import Model
from ftd.kernels import cuda_experts, cuda_memory, expert_prompt_rates, expert_rates, expert_seeds
from ftd.kernels._pool import Pool
from ftd.kernels.expert_mailbox_triton import Mailbox
from ftd.kernels.expert_places import PoolConfig, first_owners, runs
from ftd.kernels.expert_prompts import PromptShare
from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.expert_split import NUM_SIZES
from tests.engine import test_model, tiny
from tests.engine.test_model import PROMPT, assert_close, run


@pytest.fixture(scope="module")
def oracle() -> tiny.Tiny:
    """Qwen3 with experts in two of three layers."""
    return tiny.make("qwen3_moe")


def build(
    oracle: tiny.Tiny,
    num_slots: int,
    policy: str,
    share: float = 1.0,
    threads: Pool | None = None,
    staged_layers: int = 2,
    looks_ahead: bool = False,
) -> tuple[Model, ExpertSlots]:
    """Build the model with a pool that fetches a ``share`` of misses and runs the others on ``threads``."""
    place = devices.interpreter() if devices.missing_for_cuda() else devices.cuda()
    records = oracle.banks[0].records
    config = PoolConfig(
        num_layers=len(oracle.banks),
        num_experts=records.shape[0],
        record_bytes=records.shape[1],
        num_slots=num_slots,
        quota=tuple(round(share * misses) for misses in range(records.shape[0] + 1)),
        weights=Clock(32).weights,
        epoch_half_lives=EPOCH_HALF_LIVES,
        policy=policy,
        staged_layers=staged_layers,
        looks_ahead=looks_ahead,
    )
    device = "cpu" if place.name == "interpreter" else "cuda"
    pool = ExpertSlots(config, 4, oracle.hyperparameters["num_experts_per_tok"], device)
    if threads is not None:
        pool.use_processor(threads, oracle.hyperparameters["hidden_size"], "f32", prompt_tokens=16)

    def make_graph(*args: object, **options: object) -> object:
        return place.make_graph(*args, **options, experts=pool)

    return test_model.build(oracle, make_graph, None, "f32", place.make_pages), pool


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_slots", "policy", "looks"),
    [
        (0, "decayed", True),
        (3, "decayed", True),
        (3, "decayed", False),
        (5, "lru", False),
        (16, "decayed", True),
    ],
)
def test_logits_do_not_depend_on_the_slots(
    oracle: tiny.Tiny, num_slots: int, policy: str, looks: bool
) -> None:
    model, pool = build(oracle, num_slots, policy, looks_ahead=looks)
    theirs = oracle.logits(PROMPT[:20])
    ours = [run(model, [(0, PROMPT[:12], 0)])]  # staged
    ours += [run(model, [(0, [PROMPT[i]], i)]) for i in range(12, 17)]  # one by one
    ours += [run(model, [(0, PROMPT[17:20], 17)])]  # a few
    assert_close(np.concatenate(ours), theirs)
    counters = dict(zip(("uses", "hits", "fills", "transient"), pool.state.counters.tolist(), strict=False))
    assert counters["uses"] > 0
    assert counters["uses"] == sum(counters[name] for name in ("hits", "fills", "transient"))
    if num_slots == 16:
        assert counters["hits"] == counters["uses"]
    ahead = pool.counters()["ahead_fills"]
    assert (ahead > 0) == (looks and 0 < num_slots < 16)
    pool.set_ahead(99)  # no layer misses as many
    run(model, [(0, [PROMPT[20]], 20)])
    assert pool.counters()["ahead_fills"] == ahead
    pool.close()


@pytest.mark.parametrize("looks", [False, True])
def test_a_router_chooses_for_the_next_layer_too(oracle: tiny.Tiny, looks: bool) -> None:
    model, pool = build(oracle, 5, "decayed", looks_ahead=looks)
    program = model.graph._runner._program
    first, last = (op for op in program if isinstance(op, cuda_experts.Router))
    layers = [op for op in program if isinstance(op, cuda_experts.CachedExperts)]
    assert last.expected is None and [op.expected for op in layers] == [first.expected, None]
    assert (first.expected is not None) == looks
    if first.expected is not None:
        assert first.expected.weight is last.product.weight
        # What its options say of another choice is no use to it
        other = replace(last, route=replace(last.route, options=("sigmoid", *last.route.options[1:])))
        assert cuda_experts._is_alike(first, last) and not cuda_experts._is_alike(first, other)
    pool.close()


@pytest.mark.slow
def test_one_staged_layer_gives_what_two_give(oracle: tiny.Tiny) -> None:
    found = []
    for staged_layers in (2, 1):
        model, pool = build(oracle, 5, "decayed", staged_layers=staged_layers)
        found.append(run(model, [(0, PROMPT[:12], 0)]))
        pool.close()
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_experts_of_a_long_step_compute_in_parts(oracle: tiny.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def logits() -> np.ndarray:
        model, pool = build(oracle, 5, "decayed")
        found = run(model, [(0, PROMPT[:12], 0)])
        pool.close()
        return found

    whole = logits()
    for module in (cuda_experts, cuda_memory):
        monkeypatch.setattr(module, "MOST_EXPERT_ROWS", 5)
    np.testing.assert_allclose(logits(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "looks"), [(0.0, False), (0.5, False), (0.5, True)])
def test_logits_do_not_depend_on_who_computes(oracle: tiny.Tiny, share: float, looks: bool) -> None:
    with Pool(2) as threads:
        model, pool = build(oracle, 5, "decayed", share, threads, looks_ahead=looks)
        theirs = oracle.logits(PROMPT[:20])
        ours = [run(model, [(0, PROMPT[:12], 0)])]
        ours += [run(model, [(0, [PROMPT[i]], i)]) for i in range(12, 17)]
        ours += [run(model, [(0, PROMPT[17:20], 17)])]
        assert_close(np.concatenate(ours), theirs)
        pool.check()
        assert pool.counters()["on_cpu"] > 0
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(("num_slots", "count"), [(5, 0), (5, 3), (0, 16)])
def test_logits_do_not_depend_on_who_computes_of_a_prompt(
    oracle: tiny.Tiny, num_slots: int, count: int
) -> None:
    with Pool(2) as threads:
        model, pool = build(oracle, num_slots, "decayed", 0.5, threads)
        asked: list[tuple[int, int]] = []

        def share(tokens: int, missing: int) -> int:
            asked.append((tokens, missing))
            return min(count, missing)

        pool.share_prompts(share)
        staged = pool.counters()["staged"]  # a card has warmed up
        theirs = oracle.logits(PROMPT[:40])
        ours = [run(model, [(0, PROMPT[:12], 0)])]
        chosen = oracle.hyperparameters["num_experts_per_tok"]
        assert {int(uses[:-1].sum()) for uses in model.expert_uses().values()} == {12 * chosen}
        total = pool.config.num_layers * pool.config.num_experts
        missing = total - num_slots
        assert {tokens for tokens, _ in asked} == {12} and sum(each for _, each in asked) == missing
        shared = sum(min(count, each) for _, each in asked)
        assert pool.counters()["shared"] == shared
        assert pool.counters()["staged"] - staged == missing - shared
        ours += [run(model, [(0, [PROMPT[i]], i)]) for i in range(12, 16)]
        asked.clear()
        ours += [run(model, [(0, PROMPT[16:40], 16)])]  # more tokens than the mailbox has rows
        assert not asked and pool.counters()["shared"] == shared
        assert_close(np.concatenate(ours), theirs)
        pool.check()
        pool.close()


def test_the_coldest_of_missing_experts_are_the_processors() -> None:
    share = PromptShare(Mailbox.allocate(2, 2, 32, torch.float32, "cpu", most=8), 2, 4, 1)
    held, score = np.array([3, -1, -1, -1, -1, -1, 0, 1]), np.array([0, 5, 2, 9, 1, 1, 0, 0])
    share.choose(8, held.astype(np.int32), score)
    assert not share.ours.any()
    share.share_of = lambda tokens, missing: min(missing - 1, 2)
    share.choose(8, held.astype(np.int32), score)
    assert share.ours.tolist() == [[False, True, True, False], [True, False, False, False]]
    share.choose(9, held.astype(np.int32), score)
    assert not share.ours.any()


def test_a_split_is_measured_and_the_pool_is_as_before(oracle: tiny.Tiny) -> None:
    with Pool(2) as threads:
        _, pool = build(oracle, 5, "decayed", 0.5, threads)
        before = pool.state.saved()
        split = expert_rates.measure(pool, 3)
        assert all(torch.equal(values, getattr(pool.state, name)) for name, values in before.items())
        # A card measures more sizes than the interpreter
        assert {1, 2} <= {point.misses for point in split.points} <= {1, 2, 3, 4}
        assert len(split.quota) == NUM_SIZES
        assert all(0 <= fetched <= misses for row in split.quota for misses, fetched in enumerate(row))
        pool.set_quota(split.quota, split.warm)
        assert pool.state.quota.tolist() == [split.quota, split.warm]
        pool.close()


def test_a_prompts_share_is_measured_and_the_pool_is_as_before(
    oracle: tiny.Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_prompt_rates, "PROMPT_POINTS", {12: (1, 2), 17: (1, 2)})
    with Pool(2) as threads:
        _, pool = build(oracle, 5, "decayed", 0.5, threads)
        before, counted = pool.state.saved(), pool.counters()
        monkeypatch.setattr(expert_prompt_rates, "HOPELESS", float("inf"))  # whatever the interpreter takes
        points = expert_prompt_rates.measure(pool, 3)
        assert [(point.tokens, point.misses) for point in points] == [(12, 1), (12, 2)]
        assert all(point.run_seconds > 0 and point.fetch_seconds > 0 for point in points)
        assert all(torch.equal(values, getattr(pool.state, name)) for name, values in before.items())
        assert pool.prompts is not None and not pool.prompts.ours.any()
        assert pool.counters() == counted
        # A slow processor is not asked for more
        monkeypatch.setattr(expert_prompt_rates, "HOPELESS", 4)
        monkeypatch.setattr(expert_prompt_rates, "_run_s", lambda *_: 1e3)
        assert [(point.tokens, point.misses) for point in expert_prompt_rates.measure(pool, 3)] == [(12, 1)]
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["decayed", "lru"])
def test_a_prompt_leaves_its_experts_in_slots(
    oracle: tiny.Tiny, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_seeds, "TOKENS", 2)
    model, pool = build(oracle, 6, policy)
    before = pool.state.owner_of.tolist()
    prompt = [PROMPT[:12]] if policy == "decayed" else [PROMPT[:12], PROMPT[12:20]]
    at, ours = 0, []
    for chunk in prompt:
        ours.append(run(model, [(0, chunk, at)]))
        at += len(chunk)
    after = pool.state.owner_of.tolist()
    assert after != before and not pool.state.counters.any()
    # Every slot has what the tables say
    for slot, flat in enumerate(after):
        row, expert = divmod(flat, pool.config.num_experts)
        assert pool.state.slot_of[flat] == slot
        assert torch.equal(pool._slots[slot].cpu(), torch.from_numpy(oracle.banks[row].records[expert]))
    ours += [run(model, [(0, [PROMPT[i]], i)]) for i in range(at, at + 2)]
    assert_close(np.concatenate(ours), oracle.logits(PROMPT[: at + 2]))
    pool.close()


def test_the_hottest_experts_are_in_slots_first() -> None:
    config = PoolConfig(
        num_layers=2,
        num_experts=4,
        record_bytes=16,
        num_slots=3,
        quota=(0,),
        weights=(1,),
        epoch_half_lives=24,
    )
    score = np.array([5, 0, 9, 1, 7, 0, 0, 2])
    assert first_owners(config, score).tolist() == [0, 2, 4]
    assert first_owners(config, None).tolist() == [0, 4, 5]
    assert runs(np.array([0, 1, 4, 5, 6, 9], np.int32)) == [(0, 2), (2, 5), (5, 6)]
    assert runs(np.empty(0, np.int32)) == []
