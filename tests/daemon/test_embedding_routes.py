"""Embedding routes on a live daemon; the scripted engine's vector of ids is [len, id0, id1, id2]."""

import base64
import math
import struct

import pytest
from tiny_model import EOS, add_model

from ftd.daemon import embedding
from ftd.daemon.runner import Runner

pytestmark = pytest.mark.asyncio(loop_scope="module")


def unit(*values):
    length = math.hypot(*values)
    return pytest.approx([value / length for value in values], rel=1e-6)


async def test_one_text_and_several_give_the_same_vectors_in_order(daemon):
    texts = ["ab", "c", "xyz"]
    batch = await daemon.json("/api/embed", {"model": "tiny", "input": texts})
    assert batch["embeddings"] == [unit(2, 97, 98, 0), unit(1, 99, 0, 0), unit(3, 120, 121, 122)]
    assert batch["prompt_eval_count"] == 6 and batch["model"] == "tiny"
    for text, vector in zip(texts, batch["embeddings"], strict=True):
        assert (await daemon.json("/api/embed", {"model": "tiny", "input": text}))["embeddings"] == [vector]


async def test_many_texts_go_to_the_engine_in_batches(daemon, monkeypatch):
    """One message of 10,000 long texts would hold the event loop while it is written."""
    texts = ["ab", "c", "xyz", "", "pqrstuvw", "d"]
    whole = await daemon.json("/api/embed", {"model": "tiny", "input": texts})
    sent = []
    embed = Runner.embed

    async def noted(runner, message):
        sent.append([len(ids) for ids in message.sequences])
        return await embed(runner, message)

    monkeypatch.setattr(Runner, "embed", noted)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 4)
    batched = await daemon.json("/api/embed", {"model": "tiny", "input": texts})
    assert sent == [[2, 1], [3, 1], [8], [1]]
    assert batched["embeddings"] == whole["embeddings"]
    assert batched["prompt_eval_count"] == whole["prompt_eval_count"] == 16


async def test_nothing_loads_and_the_empty_string_is_embedded(daemon):
    for body in ({}, {"input": ""}, {"input": []}, {"input": None}):
        assert (await daemon.json("/api/embed", {"model": "tiny", **body}))["embeddings"] == []
    assert (await daemon.json("/api/embed", {"model": "tiny", "input": [""]}))["embeddings"] == [
        unit(1, EOS, 0, 0)
    ]


async def test_dimensions_cut_and_normalise_again(daemon):
    body = {"model": "tiny", "input": "ab", "dimensions": 2}
    assert (await daemon.json("/api/embed", body))["embeddings"] == [unit(2, 97)]
    body["dimensions"] = 99
    assert len((await daemon.json("/api/embed", body))["embeddings"][0]) == 4


async def test_long_input_is_cut_and_reported_or_refused_with_both_numbers(daemon):
    body = {"model": "tiny", "input": ["a" * 30, "b"], "options": {"num_ctx": 16}}
    answer = await daemon.json("/api/embed", body)
    assert answer["truncated_tokens"] == 14 and answer["prompt_eval_count"] == 17
    assert answer["embeddings"][0] == unit(16, 97, 97, 97)
    refused = await daemon.json("/api/embed", body | {"truncate": False}, status=400)
    assert refused["error"] == (
        "the input length exceeds the context length: input 0 has 30 tokens, the context length is 16"
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/api/embed", {"input": "x"}, 404, "model '' not found"),
        ("/api/embed", {"model": "no", "input": "x"}, 404, 'model "no" not found, try pulling it first'),
        ("/api/embed", {"model": "no", "input": 3}, 400, "invalid input type"),
        ("/api/embeddings", {}, 400, "model is required"),
        ("/api/embeddings", {"model": "no"}, 404, 'model "no" not found, try pulling it first'),
    ],
)
async def test_errors(daemon, path, body, status, error):
    assert (await daemon.json(path, body, status=status))["error"] == error


async def test_older_route(daemon):
    assert (await daemon.json("/api/embeddings", {"model": "tiny", "prompt": ""})) == {"embedding": []}
    answer = await daemon.json("/api/embeddings", {"model": "tiny", "prompt": "ab"})
    assert answer == {"embedding": unit(2, 97, 98, 0)}


async def test_openai_in_both_encodings(daemon):
    body = {"model": "tiny", "input": ["ab", "c"]}
    plain = await daemon.json("/v1/embeddings", body)
    assert [row["index"] for row in plain["data"]] == [0, 1]
    assert plain["data"][0]["embedding"] == unit(2, 97, 98, 0)
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    coded = await daemon.json("/v1/embeddings", body | {"encoding_format": "base64"})
    assert list(struct.unpack("<4f", base64.b64decode(coded["data"][0]["embedding"]))) == unit(2, 97, 98, 0)
    error = (await daemon.json("/v1/embeddings", {"model": "tiny", "input": [1]}, status=400))["error"]
    assert error["message"].startswith("invalid input type: number at input[0] (send texts")


async def test_a_model_that_embeds_says_so_and_completes_nothing(daemon):
    words = {"general.architecture": "bert", "bert.pooling_type": 2}
    add_model(daemon.store, "embedder", template="", **words)
    shown = await daemon.json("/api/show", {"model": "embedder"})
    assert shown["capabilities"] == ["embedding"]
    refused = await daemon.json("/api/generate", {"model": "embedder", "prompt": "x"}, status=400)
    assert refused["error"] == '"embedder" does not support generate'
    messages = [{"role": "user", "content": "x"}]
    refused = await daemon.json("/api/chat", {"model": "embedder", "messages": messages}, status=400)
    assert refused["error"] == '"embedder" does not support chat'
    assert (await daemon.json("/api/embed", {"model": "embedder", "input": "ab"}))["embeddings"] == [
        unit(2, 97, 98, 0)
    ]


async def test_older_route_leaves_bert_as_it_is_unless_the_model_asks(daemon):
    words = {"general.architecture": "bert", "bert.pooling_type": 2}
    add_model(daemon.store, "raw", template="", **words)
    add_model(daemon.store, "unit", template="", **words, **{"bert.normalize_embeddings": True})
    answer = await daemon.json("/api/embeddings", {"model": "raw", "prompt": "ab"})
    assert answer == {"embedding": [2.0, 97.0, 98.0, 0.0]}
    answer = await daemon.json("/api/embeddings", {"model": "unit", "prompt": "ab"})
    assert answer == {"embedding": unit(2, 97, 98, 0)}


async def test_a_reranker_embeds_nothing(daemon):
    add_model(daemon.store, "ranker", **{"llama.pooling_type": 4})
    refused = await daemon.json("/api/embed", {"model": "ranker", "input": "x"}, status=400)
    assert refused["error"] == "a model that ranks pairs of texts embeds none"
