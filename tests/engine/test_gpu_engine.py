"""The engine on the kernels of a card against the engine on the processor: same texts, whatever runs ahead.

Without a card the kernels run in Triton's interpreter, in f32 so that the two agree in every id.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import bench, devices
from ftd.engine.messages import Load, SamplingParams, Tokens
from tests.engine import tiny
from tests.engine.serving import Serving, write_ftw

# The interpreter takes a minute for these
pytestmark = pytest.mark.slow

SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=11)
PROMPTS = ([5, 9, 2], [7, 7, 31, 8, 100, 3, 12], [1], [40, 41, 42, 43, 44])


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A tiny model as files."""
    return write_ftw(tiny.make("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def card(load: Load) -> Iterator[Serving]:
    """The engine on a card."""
    name = "interpreter" if devices.missing_for_cuda() else "cuda"
    serving = Serving(msgspec.structs.replace(load, device=name))
    yield serving
    serving.close()


@pytest.fixture(scope="module")
def processor(load: Load) -> Iterator[Serving]:
    """The engine on the processor."""
    serving = Serving(load)
    yield serving
    serving.close()


def test_texts_of_a_batch_are_those_of_the_processor(card: Serving, processor: Serving) -> None:
    texts = []
    for serving in (card, processor):
        requests = [serving.start(ids, max_tokens=4 + i) for i, ids in enumerate(PROMPTS)]
        serving.run()
        texts.append([serving.tokens(request) for request in requests])
    assert texts[0] == texts[1]


def test_sampled_texts_and_logprobs_are_those_of_the_processor(card: Serving, processor: Serving) -> None:
    found = []
    for serving in (card, processor):
        request = serving.start([3, 1, 4, 1, 5], sampling=SAMPLED, max_tokens=8, num_logprobs=3)
        serving.run()
        sent = [each for each in serving.sent if isinstance(each, Tokens) and each.request_id == request]
        found.append([logprob for each in sent for logprob in each.logprobs or []])
    assert len(found[0]) == 8
    for ours, theirs in zip(*found, strict=True):
        assert ours.id == theirs.id and [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_what_the_card_cannot_sample_is_sampled_on_the_host(card: Serving, processor: Serving) -> None:
    texts = []
    for serving in (card, processor):
        whole = SamplingParams(temperature=1.0, top_k=0, seed=3)
        penalised = SamplingParams(temperature=0.0, repeat_penalty=1.3)
        requests = [
            serving.start([9, 8], sampling=whole, max_tokens=5),
            serving.start([2, 2, 2], sampling=penalised, max_tokens=5),
        ]
        serving.run()
        texts.append([serving.tokens(request) for request in requests])
    assert texts[0] == texts[1]


def test_a_stop_id_ends_a_text_that_ran_ahead(card: Serving) -> None:
    request = card.start(PROMPTS[1], max_tokens=10, sampling=SAMPLED)
    card.run()
    text = card.tokens(request)
    stop = next(token for i, token in enumerate(text) if i > 2 and token not in text[:i])
    again = card.start(PROMPTS[1], max_tokens=10, sampling=SAMPLED, stop_ids=[stop])
    other = card.start(PROMPTS[0], max_tokens=9)
    card.run()
    assert card.tokens(again) == text[: text.index(stop)]
    assert card.finished(again).reason == "stop"
    assert len(card.tokens(other)) == 9


def test_a_request_that_comes_while_a_step_runs_ahead(card: Serving, processor: Serving) -> None:
    texts = []
    for serving in (card, processor):
        first = serving.start(PROMPTS[0], max_tokens=9)
        serving.run(steps=3)
        second = serving.start(PROMPTS[1], max_tokens=4)
        serving.run()
        texts.append((serving.tokens(first), serving.tokens(second)))
    assert texts[0] == texts[1]


def test_cancel_while_a_step_runs_ahead(card: Serving) -> None:
    cancelled, other = card.start(PROMPTS[0], max_tokens=30), card.start(PROMPTS[3], max_tokens=6)
    card.run(steps=3)
    card.engine.cancel(cancelled)
    card.run()
    assert card.finished(cancelled).reason == "abort"
    assert len(card.tokens(other)) == 6
    stats = card.engine.stats()
    assert stats.pages_live == 0 and stats.running == 0


@pytest.mark.gpu
def test_a_bench_of_the_card(load: Load) -> None:
    paths = {digest: Path(path) for digest, path in load.blob_paths.items()}
    counts = {"prompt_tokens": 9, "decode_tokens": 5, "repetitions": 1}
    result, host = (
        bench.run(Path(load.config_path), paths, device=each, **counts) for each in ("cuda", "cpu")
    )
    assert result.device == devices.cuda().label and result.outside_share is None
    assert result.weight_bytes == host.weight_bytes
    assert result.bytes_per_decode_token == host.bytes_per_decode_token
    assert result.bandwidth_bytes_per_s > 1e11 and result.decode_tokens_per_s > 0
    names = [line.split("  ")[0] for line in bench.format_table(result).splitlines()]
    assert "bandwidth" in names and "outside kernels" not in names
