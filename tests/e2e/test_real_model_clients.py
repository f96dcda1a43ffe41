"""A real model behind the real daemon and engine: SmolLM2, created over HTTP, used by the clients.

Checked against the texts that llama.cpp gives and against the model itself: cold = warm, alone = together.
"""

import asyncio
import json

import ollama
import pytest
from live_daemon import running_real

pytestmark = pytest.mark.slow

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SKY = [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}]
GREEDY = {"temperature": 0, "num_predict": 24}


@pytest.fixture
async def client(tmp_path, smollm2_gguf):
    async with running_real(tmp_path, smollm2_gguf) as daemon:
        client = ollama.AsyncClient(daemon.url, timeout=250)
        client.daemon = daemon
        yield client
        await client.close()


async def text(client, messages, **options):
    answer = await client.chat("smol", messages, options=GREEDY | options)
    return answer.message.content, answer


async def test_real_model_through_the_whole_daemon(client):
    answer, first = await text(client, FRANCE)
    assert "Paris" in answer and first.done_reason == "stop"
    warm, second = await text(client, FRANCE)
    assert warm == answer
    assert second.load_duration < 200e6 < first.load_duration

    alone = [(await text(client, messages))[0] for messages in (FRANCE, SKY)]
    together = await asyncio.gather(*(text(client, messages) for messages in (FRANCE, SKY, FRANCE, SKY)))
    assert [content for content, _ in together] == alone * 2

    streamed = ""
    async for part in await client.chat("smol", FRANCE, options=GREEDY, stream=True):
        streamed += part.message.content
    assert streamed == answer

    stopped, end = await text(client, FRANCE, stop=[" Paris"])
    assert stopped == answer.partition(" Paris")[0] and end.done_reason == "stop"

    seeds = [(await text(client, SKY, temperature=0.8, seed=seed))[0] for seed in (5, 5, 6)]
    assert seeds[0] == seeds[1] != seeds[2]

    embedded = await client.embed("smol", ["hello world", "hello world", "goodbye"])
    assert embedded.embeddings[0] == pytest.approx(embedded.embeddings[1], abs=1e-5)
    assert sum(x * x for x in embedded.embeddings[2]) == pytest.approx(1, abs=1e-5)


async def test_leaving_client_frees_the_engine(client):
    stream = await client.chat("smol", SKY, options={"num_predict": 4000}, stream=True)
    await anext(stream)
    await stream.aclose()
    manager = client.daemon.services.manager
    async with manager.lease(manager.loaded()[0].spec) as lease:
        for _ in range(200):
            if (await lease.runner.stats()).running == 0:
                break
        assert (await lease.runner.stats()).running == 0


async def test_killed_engine_is_an_error_line_and_the_next_request_works(client):
    manager = client.daemon.services.manager
    body = {"model": "smol", "messages": SKY, "options": {"num_predict": 4000}}
    response = await client.daemon.session.post(client.daemon.url + "/api/chat", json=body)
    assert "message" in json.loads(await response.content.readline())
    async with manager.lease(manager.loaded()[0].spec) as lease:
        lease.runner._process.kill()
    *_, last = (await response.content.read()).splitlines()
    assert "unexpectedly stopped" in json.loads(last)["error"]
    assert "Paris" in (await text(client, FRANCE))[0]
