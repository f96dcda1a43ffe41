"""The engine's texts are checked against transformers' greedy decoding, and against themselves run alone."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ftd.engine.messages import Embed, Load, Ready, SamplingParams, TokenLogprob, Tokens
from ftd.engine.model import Model
from ftd.errors import InvalidFtw, InvalidRequest, OutOfMemory, PromptTooLong, Unsupported
from tests.engine import tiny
from tests.engine.serving import Serving, write_ftw

RANDOM = np.random.default_rng(11)
PROMPTS = [[int(token) for token in RANDOM.integers(0, 160, size)] for size in (1, 31, 40, 70)]


@pytest.fixture(scope="module")
def oracle() -> tiny.Tiny:
    """The random model."""
    return tiny.make("qwen3")


@pytest.fixture(scope="module")
def load(oracle: tiny.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The message that loads it."""
    return write_ftw(oracle, tmp_path_factory.mktemp("ftw"))


@pytest.fixture
def serving(load: Load) -> Iterator[Serving]:
    """An engine that has loaded it."""
    serving = Serving(load)
    yield serving
    serving.close()


def greedy(oracle: tiny.Tiny, ids: list[int], count: int) -> list[int]:
    """Continue ``ids`` with transformers, without any cache."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(oracle.logits(ids)[-1].argmax()))
    return ids[-count:]


def test_load_says_what_is_in_force(serving: Serving) -> None:
    (ready,) = serving.sent
    assert isinstance(ready, Ready)
    assert (ready.context_tokens, ready.num_threads, ready.device) == (96, 1, "cpu")
    assert (
        ready.kv_bytes == serving.engine.plan.num_pages * serving.engine.plan.page_size * 2 * 3 * 2 * 32 * 4
    )
    assert ready.weight_bytes == serving.engine.weights.num_bytes > 0
    assert 0 < ready.workspace_bytes <= serving.engine.plan.workspace_bytes
    assert "graph" in ready.kernels and serving.engine.weights.unused() == []


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_transformers(serving: Serving, oracle: tiny.Tiny, prompt: list[int]) -> None:
    request = serving.start(prompt)
    serving.run()
    assert serving.tokens(request) == greedy(oracle, prompt, 12)
    finished = serving.finished(request)
    assert (finished.reason, finished.prompt_tokens, finished.output_tokens) == ("length", len(prompt), 12)
    assert min(finished.queue_ns, finished.prefill_ns, finished.decode_ns) > 0


def test_a_batch_of_four_equals_four_batches_of_one(serving: Serving, oracle: tiny.Tiny) -> None:
    requests = []
    for prompt in PROMPTS:
        requests.append(serving.start(prompt))
        serving.run(steps=1)
    serving.run()
    assert [serving.tokens(request) for request in requests] == [greedy(oracle, p, 12) for p in PROMPTS]


def test_a_warm_prefix_gives_the_cold_text(serving: Serving) -> None:
    cold = serving.start(PROMPTS[3])
    serving.run()
    warm = serving.start(PROMPTS[3])
    longer = serving.start(PROMPTS[3] + serving.tokens(cold)[:5], max_tokens=7)
    salted = serving.start(PROMPTS[3], cache_salt="other")
    serving.run()
    assert serving.tokens(warm) == serving.tokens(cold) == serving.tokens(salted)
    assert serving.tokens(longer) == serving.tokens(cold)[5:]
    cached = [serving.finished(request).cached_tokens for request in (cold, warm, longer, salted)]
    assert cached == [0, 64, 64, 0]
    assert serving.engine.stats().cached_tokens == 128


def test_sampling_depends_on_the_seed_alone(serving: Serving) -> None:
    sampling = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, seed=5)
    alone = serving.start(PROMPTS[1], sampling=sampling)
    serving.run()
    others = [serving.start(prompt, sampling=SamplingParams(temperature=2.0)) for prompt in PROMPTS[2:]]
    again = serving.start(PROMPTS[1], sampling=sampling)
    other_seed = serving.start(PROMPTS[1], sampling=msgspec.structs.replace(sampling, seed=6))
    serving.run()
    assert serving.tokens(again) == serving.tokens(alone) != serving.tokens(other_seed)
    assert all(len(serving.tokens(request)) == 12 for request in others)


def test_preemption_with_few_pages_changes_no_text(load: Load, oracle: tiny.Tiny) -> None:
    page_bytes = 32 * 2 * 3 * 2 * 32 * 4
    serving = Serving(msgspec.structs.replace(load, kv_bytes=4 * page_bytes))
    assert serving.engine.plan.num_pages == 4
    requests = [serving.start(prompt, max_tokens=20) for prompt in (PROMPTS[1], PROMPTS[2])]
    serving.run()
    assert [serving.tokens(request) for request in requests] == [
        greedy(oracle, prompt, 20) for prompt in (PROMPTS[1], PROMPTS[2])
    ]
    stats = serving.engine.stats()
    assert stats.pages_free + stats.pages_tree == stats.pages_total == 4
    serving.close()


def test_a_stop_id_ends_a_text_and_is_not_sent(serving: Serving, oracle: tiny.Tiny) -> None:
    expected = greedy(oracle, PROMPTS[2], 12)
    stop = next(token for token in expected if expected.index(token) >= 3)
    request = serving.start(PROMPTS[2], stop_ids=[stop])
    serving.run()
    assert serving.tokens(request) == expected[: expected.index(stop)]
    finished = serving.finished(request)
    assert (finished.reason, finished.output_tokens) == ("stop", expected.index(stop))


def test_a_full_window_ends_with_length(serving: Serving) -> None:
    request = serving.start(PROMPTS[3], max_tokens=-1)
    serving.run()
    assert serving.finished(request).reason == "length"
    assert len(serving.tokens(request)) == 96 - 70


def test_a_window_grows_over_the_same_weights(load: Load, oracle: tiny.Tiny) -> None:
    """KEEP-1: nothing is read again, and longer texts than before are what they are alone."""
    serving = Serving(load)
    old = serving.engine
    first = serving.start(PROMPTS[2])
    with pytest.raises(InvalidRequest, match="between requests"):
        old.grown(msgspec.structs.replace(load, context_tokens=128))
    serving.run()
    serving.engine = new = old.grown(msgspec.structs.replace(load, context_tokens=160))
    assert new.weights is old.weights and new.read_bytes == 0
    assert new.plan.context_tokens == 160 and isinstance(serving.sent[-1], Ready)
    long = PROMPTS[3] + PROMPTS[2]
    again, beyond = serving.start(PROMPTS[2]), serving.start(long, max_tokens=4)
    serving.run()
    assert serving.tokens(again) == serving.tokens(first) == greedy(oracle, PROMPTS[2], 12)
    assert serving.tokens(beyond) == greedy(oracle, long, 4)
    serving.close()


def test_cancel_frees_the_pages_and_leaves_the_others_alone(serving: Serving, oracle: tiny.Tiny) -> None:
    kept, aborted, waiting = (serving.start(prompt, max_tokens=20) for prompt in PROMPTS[1:])
    serving.run(steps=6)
    serving.engine.cancel(aborted)
    serving.engine.cancel(waiting)
    assert serving.finished(aborted).reason == serving.finished(waiting).reason == "abort"
    serving.engine.cancel(aborted)
    serving.engine.cancel(12345)
    serving.run()
    assert serving.tokens(kept) == greedy(oracle, PROMPTS[1], 20)
    assert serving.engine.stats().pages_live == 0
    assert serving.finished(aborted).output_tokens == len(serving.tokens(aborted)) < 20


def test_logprobs_are_those_of_the_whole_distribution(serving: Serving, oracle: tiny.Tiny) -> None:
    request = serving.start(PROMPTS[2], max_tokens=1, num_logprobs=3)
    chosen_only = serving.start(PROMPTS[2], max_tokens=1, num_logprobs=0)
    serving.run()
    logits = oracle.logits(PROMPTS[2])[-1].astype(np.float64)
    expected = logits - math.log(np.exp(logits).sum())
    best = [int(token) for token in np.argsort(-logits)[:3]]
    (message,) = [m for m in serving.sent if isinstance(m, Tokens) and m.request_id == request]
    assert message.logprobs is not None
    (entry,) = message.logprobs
    assert (entry.id, [token for token, _ in entry.top]) == (best[0], best)
    np.testing.assert_allclose([value for _, value in entry.top], expected[best], atol=1e-3)
    (message,) = [m for m in serving.sent if isinstance(m, Tokens) and m.request_id == chosen_only]
    assert message.logprobs == [TokenLogprob(best[0], entry.logprob)]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_pool_the_last_hidden_state(serving: Serving, oracle: tiny.Tiny, pooling: str) -> None:
    serving.engine.embed(Embed(request_id=1, sequences=PROMPTS, pooling=pooling))  # type: ignore[arg-type]
    text = serving.engine
    assert text.has_work
    serving.run()
    embedded = serving.embedded(1)
    vectors = np.frombuffer(embedded.data, "<f4").reshape(4, embedded.width)
    hidden = [oracle.hidden(prompt) for prompt in PROMPTS]
    expected = {
        "mean": [rows.mean(axis=0) for rows in hidden],
        "last": [rows[-1] for rows in hidden],
        "cls": [rows[0] for rows in hidden],
    }[pooling]
    np.testing.assert_allclose(vectors, expected, atol=2e-4)
    assert embedded.prompt_tokens == sum(map(len, PROMPTS))


def test_cancelled_embeddings_answer_abort(serving: Serving) -> None:
    serving.engine.embed(Embed(request_id=1, sequences=PROMPTS))
    serving.run(steps=1)
    serving.engine.cancel(1)
    assert serving.finished(1).reason == "abort"
    assert not serving.engine.has_work


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([], InvalidRequest, "no tokens"),
        ([0, 160], InvalidRequest, "159: 160"),
        ([-1], InvalidRequest, "159: -1"),
        ([2**40], InvalidRequest, str(2**40)),
        ([1] * 96, PromptTooLong, "96"),
    ],
)
def test_bad_prompts_are_refused_and_leave_nothing(
    serving: Serving, ids: list[int], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        serving.start(ids)
    bad_embedding = [[1, 2], [*ids, 1]] if len(ids) >= 96 else [[1, 2], ids]
    with pytest.raises(error, match=words if len(ids) < 96 else "97"):
        serving.engine.embed(Embed(request_id=7, sequences=bad_embedding))
    assert not serving.engine.has_work
    serving.engine.embed(Embed(request_id=7, sequences=[[1, 2]]))
    serving.run()
    assert serving.embedded(7).prompt_tokens == 2


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=float("nan")),
        SamplingParams(temperature=-1.0),
        SamplingParams(top_p=float("inf")),
        SamplingParams(repeat_penalty=0.0),
    ],
)
def test_impossible_sampling_is_refused(serving: Serving, sampling: SamplingParams) -> None:
    with pytest.raises(InvalidRequest):
        serving.start(PROMPTS[1], sampling=sampling)
    assert not serving.engine.has_work


def test_logits_that_are_not_finite_fail_their_request_alone(
    serving: Serving, oracle: tiny.Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = type(serving.engine.model).logits.fget
    assert view is not None

    def broken(model: Model) -> np.ndarray:
        logits = view(model)
        if len(logits) == 2:
            logits[1] = np.nan
        return logits

    monkeypatch.setattr(Model, "logits", property(broken))
    kept, spoilt = serving.start(PROMPTS[0]), serving.start(PROMPTS[1])
    serving.run()
    (failed,) = serving.failed()
    assert (failed.request_id, failed.kind) == (spoilt, "EngineError") and "not finite" in failed.message
    assert serving.tokens(spoilt) == []
    assert serving.tokens(kept) == greedy(oracle, PROMPTS[0], 12)
    assert serving.engine.stats().pages_live == 0
    serving.start(PROMPTS[2])


def test_an_id_in_use_is_refused(serving: Serving) -> None:
    serving.start(PROMPTS[1])
    serving.next_id = 0
    with pytest.raises(InvalidRequest, match="in use: 1"):
        serving.start(PROMPTS[1])


def test_a_window_that_does_not_fit_is_refused_before_anything_is_read(load: Load) -> None:
    with pytest.raises(OutOfMemory, match="KV"):
        Serving(msgspec.structs.replace(load, kv_bytes=1000))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("num_hidden_layers", 4), InvalidFtw),
        (("hidden_size", 32), InvalidFtw),
        (("hidden_act", "relu"), Unsupported),
    ],
)
def test_a_config_that_lies_is_refused(
    oracle: tiny.Tiny, tmp_path: Path, change: tuple[str, object], error: type[Exception]
) -> None:
    lying = tiny.Tiny(
        oracle.architecture, oracle.hyperparameters | dict([change]), oracle.tensors, oracle.oracle
    )
    with pytest.raises(error):
        Serving(write_ftw(lying, tmp_path))


def test_an_unknown_architecture_is_named(oracle: tiny.Tiny, tmp_path: Path) -> None:
    unknown = tiny.Tiny("mamba9", oracle.hyperparameters, oracle.tensors, oracle.oracle)
    with pytest.raises(Unsupported, match="mamba9"):
        Serving(write_ftw(unknown, tmp_path))


def test_a_model_with_experts_is_served(tmp_path: Path) -> None:
    oracle = tiny.make("qwen3_moe")
    serving = Serving(write_ftw(oracle, tmp_path))
    requests = [serving.start(prompt) for prompt in PROMPTS[:3]]
    serving.run()
    for request, prompt in zip(requests, PROMPTS, strict=False):
        assert serving.tokens(request) == greedy(oracle, prompt, 12)
    assert serving.engine.weights.unused() == []
    assert 0 < serving.engine.model.workspace_bytes <= serving.engine.plan.workspace_bytes
    stats = serving.engine.stats()
    computed = stats.prefill_tokens + stats.decode_tokens
    # Two layers of the three have experts; a token uses three in each.
    assert stats.expert_uses == 2 * 3 * computed
    assert 2 * 3 * stats.steps <= stats.expert_reads <= 2 * 8 * stats.steps
    serving.close()
