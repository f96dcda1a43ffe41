"""Rows that need a model: SmolLM2 through the whole daemon."""

import asyncio
import base64
import random

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SENTENCES = [
    f"Sentence {n} is about {word}."
    for n, word in enumerate(["sea", "sun", "ice", "tea", "cat", "dog", "fox", "owl", "ant", "bee"])
]


def cosines(first, second):
    a, b = np.asarray(first), np.asarray(second)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


async def test_emb_3_one_by_one_in_a_list_and_in_parallel(smol_daemon):
    body = {"model": "smol"}
    batch = (await smol_daemon.json("/api/embed", body | {"input": SENTENCES}))["embeddings"]
    single = [
        (await smol_daemon.json("/api/embed", body | {"input": text}))["embeddings"][0] for text in SENTENCES
    ]
    parallel = await asyncio.gather(
        *(smol_daemon.json("/v1/embeddings", body | {"input": text}) for text in SENTENCES)
    )
    coded = await smol_daemon.json("/v1/embeddings", body | {"input": SENTENCES, "encoding_format": "base64"})
    decoded = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in coded["data"]]
    assert len(batch) == len(decoded) == len(SENTENCES)
    for other in (single, [answer["data"][0]["embedding"] for answer in parallel], decoded):
        assert cosines(batch, other).min() > 0.9999
    distinct = cosines(batch, batch[1:] + batch[:1])
    assert distinct.max() < 0.99999


async def test_emb_4_any_text_has_a_finite_vector_of_length_one(smol_daemon):
    """The empty text, a blank, colons, emoji and 400 random strings, twenty at a time."""
    source = random.Random(4)
    alphabet = "abc :;.,\n\t😀日本é{}\"'\\0"
    texts = [
        "",
        " ",
        "Note:",
        ":",
        "😀",
        "\n",
        *("".join(source.choices(alphabet, k=source.randint(0, 12))) for _ in range(394)),
    ]
    for start in range(0, len(texts), 20):
        answer = await smol_daemon.json("/api/embed", {"model": "smol", "input": texts[start : start + 20]})
        vectors = np.asarray(answer["embeddings"])
        assert vectors.shape[0] == 20 and np.isfinite(vectors).all()
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-3


async def test_mod_4_a_short_answer_that_ends_by_itself(smol_daemon):
    """Created from the file alone: template and end of turn are those of the file."""
    messages = [{"role": "user", "content": "Say hello."}]
    body = {
        "model": "smol",
        "messages": messages,
        "stream": False,
        "options": {"temperature": 0, "num_predict": 200},
    }
    answer = await smol_daemon.json("/api/chat", body)
    assert answer["done_reason"] == "stop" and 0 < answer["eval_count"] < 100


async def test_ctx_1_an_answer_longer_than_the_window_goes_on_and_says_so(smol_daemon):
    body = {"model": "smol", "prompt": "Count: 1, 2, 3,", "raw": True, "stream": False}
    options = {"num_ctx": 64, "num_predict": 150, "temperature": 0, "num_keep": 4, "stop": []}
    answer = await smol_daemon.json("/api/generate", body | {"options": options})
    assert answer["eval_count"] == 150 and answer["shifted_tokens"] >= 60
    short = await smol_daemon.json("/api/generate", body | {"options": options, "shift": False})
    assert (short["done_reason"], "shifted_tokens" in short) == ("length", False)
    assert short["eval_count"] < 64 and answer["response"].startswith(short["response"])


async def test_ctx_4_four_requests_of_nearly_a_window_at_once(smol_daemon):
    word = "word "
    body = {"model": "smol", "prompt": word * 760, "raw": True, "stream": False, "truncate": False}
    body["options"] = {"num_ctx": 1024, "num_predict": 8, "temperature": 0}
    answers = await asyncio.gather(*(smol_daemon.json("/api/generate", body) for _ in range(4)))
    (model,) = (await smol_daemon.json("/api/ps"))["models"]
    assert model["context_length"] >= 1024
    assert {answer["prompt_eval_count"] for answer in answers} == {answers[0]["prompt_eval_count"]}
    assert answers[0]["prompt_eval_count"] >= 760
    assert len({answer["response"] for answer in answers}) == 1


async def test_keep_1_a_larger_window_reads_no_weights(smol_daemon):
    """Chat, title without num_ctx, chat: one process; the larger window takes no load either."""
    body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    pids, first = [], None
    for options in ({"num_ctx": 1024}, {}, {"num_ctx": 6000}, {"num_ctx": 1024}, {"num_ctx": 6000}):
        answer = await smol_daemon.json("/api/chat", body | {"options": options | {"temperature": 0}})
        first = first or answer["message"]["content"]
        assert answer["message"]["content"] == first
        pids.append(smol_daemon.services.manager.loaded()[0].pid)
    assert len(set(pids)) == 1
    (model,) = (await smol_daemon.json("/api/ps"))["models"]
    assert model["context_length"] >= 6000
