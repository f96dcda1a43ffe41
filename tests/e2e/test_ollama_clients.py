"""The ollama-python client, sync and async, and the openai SDK, unmodified, against a live daemon."""

import asyncio
import hashlib
import re

import ollama
import pytest
import pytest_asyncio
from fake_engine import fake_command
from live_daemon import registry, running
from tiny_model import TOOLS, add_model, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def in_thread(function, *arguments, **keywords):
    """Run a blocking client beside the loop that serves it."""
    return asyncio.to_thread(function, *arguments, **keywords)


@pytest.fixture
def client(daemon):
    client = ollama.Client(daemon.url)
    yield client
    client.close()


async def test_ollama_sync(client):
    answer = await in_thread(client.chat, "tiny", USER)
    assert answer.message.content == "Hello, world" and answer.done_reason == "stop"
    parts = await in_thread(lambda: list(client.generate("tiny", "hi", stream=True)))
    assert "".join(part.response for part in parts) == "Hello, world"
    assert [part.done for part in parts].count(True) == 1 and parts[-1].eval_count == 12
    assert parts[-1].context and parts[-1].total_duration > 0
    listed = await in_thread(client.list)
    assert [model.model for model in listed.models] == ["tiny:latest"]
    assert listed.models[0].details.family == "llama" and listed.models[0].modified_at.tzinfo
    shown = await in_thread(client.show, "tiny")
    assert shown.modelinfo["general.architecture"] == "llama" and shown.capabilities == ["completion"]
    loaded = await in_thread(client.ps)
    assert loaded.models[0].context_length == 4096 and loaded.models[0].expires_at.tzinfo
    embedded = await in_thread(client.embed, "tiny", ["ab", "c"])
    assert len(embedded.embeddings) == 2 and embedded.prompt_eval_count == 3
    assert len((await in_thread(client.embeddings, "tiny", "ab")).embedding) == 4


async def test_ollama_sync_manages_models(client, tmp_path):
    assert (await in_thread(client.copy, "tiny", "mine")).status == "success"
    created = await in_thread(client.create, "brief", from_="tiny", system="Be brief.")
    assert created.status == "success"
    lines = await in_thread(lambda: list(client.create("brief2", from_="tiny", stream=True)))
    assert lines[-1].status == "success"
    blob = tmp_path / "blob"
    blob.write_bytes(b"some bytes")
    digest = await in_thread(client.create_blob, blob)
    assert digest == f"sha256:{hashlib.sha256(b'some bytes').hexdigest()}"
    for name in ("mine", "brief", "brief2"):
        assert (await in_thread(client.delete, name)).status == "success"
    with pytest.raises(ollama.ResponseError) as caught:
        await in_thread(client.pull, "bad name")
    assert (caught.value.status_code, caught.value.error) == (400, "invalid model name")


async def test_ollama_sync_pulls_and_pushes(client, tmp_path):
    async with registry(tmp_path, models=("remote",)) as host:
        name = f"{host}/library/remote:latest"
        lines = await in_thread(lambda: list(client.pull(name, insecure=True, stream=True)))
        assert lines[0].status == "pulling manifest" and lines[-1].status == "success"
        assert (await in_thread(client.chat, name, USER)).message.content == "Hello, world"
        await in_thread(client.copy, "tiny", f"{host}/library/sent")
        assert (await in_thread(client.push, f"{host}/library/sent", insecure=True)).status == "success"
        for pulled in (name, f"{host}/library/sent"):
            assert (await in_thread(client.delete, pulled)).status == "success"


async def test_ollama_async(daemon):
    client = ollama.AsyncClient(daemon.url)
    text = ""
    async for part in await client.chat("tiny", USER, stream=True, keep_alive="5m", options={"num_ctx": 512}):
        text += part.message.content
    assert text == "Hello, world" and part.done
    answer = await client.generate("tiny", "hi", logprobs=True, top_logprobs=1)
    assert len(answer.logprobs) == 12 and answer.logprobs[0].token == "H"
    unloaded = await client.generate("tiny", keep_alive=0)
    assert unloaded.done_reason == "unload"
    with pytest.raises(ollama.ResponseError) as caught:
        await client.chat("nope", USER)
    assert (caught.value.status_code, caught.value.error) == (404, "model 'nope' not found")
    await client.close()


async def test_separators_survive_the_clients_line_splitting(tmp_path):
    text = "a\x85b\u2028c\u2029d\x1ce\r\nf"
    async with running(tmp_path, fake_command(reply=ids_of(text))) as daemon:
        client = ollama.AsyncClient(daemon.url)
        parts = [part.response async for part in await client.generate("tiny", "x", stream=True)]
        assert "".join(parts) == text
        await client.close()


async def test_ollama_tools(tmp_path):
    def add(a: int) -> int:
        """Add.

        Args:
            a: a number
        """
        return a

    async with running(tmp_path, fake_command(reply=ids_of(CALL)), models=()) as daemon:
        add_model(daemon.store, "tools", TOOLS)
        client = ollama.AsyncClient(daemon.url)
        answer = await client.chat("tools", USER, tools=[add])
        (call,) = answer.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("add", {"a": 1})
        follow = [*USER, answer.message, {"role": "tool", "content": "1", "tool_name": "add"}]
        assert (await client.chat("tools", follow, tools=[add])).done
        await client.close()


async def test_openai_sync_and_async(daemon):
    import openai  # a second and a half, in one of the processes that collect this file

    settings = {"base_url": f"{daemon.url}/v1/", "api_key": "x", "max_retries": 0}
    with openai.OpenAI(**settings) as client:
        answer = await in_thread(client.chat.completions.create, model="tiny", messages=USER)
        assert answer.choices[0].message.content == "Hello, world"
        assert re.fullmatch(r"chatcmpl-\d+", answer.id) and answer.usage.completion_tokens == 12
        assert [model.id for model in (await in_thread(client.models.list)).data] == ["tiny:latest"]
        embedded = await in_thread(client.embeddings.create, model="tiny", input=["ab", "c"])
        assert [len(row.embedding) for row in embedded.data] == [4, 4]
    async with openai.AsyncOpenAI(**settings) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world"
        assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 12
        completion = await client.completions.create(model="tiny", prompt="x", max_tokens=5)
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("Hello", "length")
        assert (await client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError, match="model 'nope' not found"):
            await client.chat.completions.create(model="nope", messages=USER)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x" * 500}], extra_body={"num_ctx": 64}
            )
        assert caught.value.code == "context_length_exceeded"


async def test_openai_sees_an_error_in_mid_stream(tmp_path):
    import openai

    async with (
        running(tmp_path, fake_command(reply=ids_of("abcdef"), crash_after=3)) as daemon,
        openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="unexpectedly stopped"):
            async for _ in stream:
                pass
