"""``responses`` of the ``openai`` package against a live daemon with scripted engines."""

import json

import openai
import pytest
import zstandard
from fake_engine import fake_command
from live_daemon import running
from tiny_model import THINKING, TOOLS, add_model, ids_of

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALLS = (
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>'
)


def client_of(daemon):
    return openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0)


async def test_create_and_stream(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        response = await client.responses.create(model="tiny", input="hi", instructions="s")
        assert (response.output_text, response.status) == ("Hello, world", "completed")
        assert response.usage.total_tokens == response.usage.input_tokens + 12
        async with client.responses.stream(model="tiny", input="hi") as stream:
            text = "".join(
                [event.delta async for event in stream if event.type == "response.output_text.delta"]
            )
            final = await stream.get_final_response()
        assert text == final.output_text == "Hello, world"
        cut = await client.responses.create(model="tiny", input="hi", max_output_tokens=5)
        assert (cut.output_text, cut.status) == ("Hello", "incomplete")


async def test_thinking_and_calls(tmp_path):
    command = fake_command(reply=ids_of(f"<think>hm</think>{CALLS}"))
    async with running(tmp_path, command, models=()) as daemon, client_of(daemon) as client:
        add_model(daemon.store, "tooly", template=TOOLS + THINKING)
        body = {"model": "tooly", "tools": [TOOL]}
        asked = [{"role": "user", "content": "weather?"}]
        response = await client.responses.create(input=asked, **body)
        reasoning, *calls = response.output
        assert reasoning.summary[0].text == "hm"
        assert [json.loads(call.arguments)["city"] for call in calls] == ["Paris", "Bonn"]
        assert len({call.call_id for call in calls}) == 2
        async with client.responses.stream(input=asked, **body) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == [item.type for item in response.output]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in calls
        ]
        again = [*asked, *[item.model_dump(exclude_none=True) for item in response.output], *results]
        assert (await client.responses.create(input=again, **body)).status == "completed"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_item_may_be_named_instead_of_sent(tmp_path, is_streamed):
    """What the AI SDK does; nothing is kept of an answer whose client says so."""
    async with running(tmp_path) as daemon, client_of(daemon) as client:

        async def ask(**body):
            if not is_streamed:
                return await client.responses.create(model="tiny", **body)
            *_, last = [
                event async for event in await client.responses.create(model="tiny", stream=True, **body)
            ]
            return last.response

        asked = {"role": "user", "content": "hi"}
        first = await ask(input=[asked])
        named = [asked, {"type": "item_reference", "id": first.output[0].id}, asked]
        sent = [asked, first.output[0].model_dump(exclude_none=True), asked]
        counts = [(await ask(input=items)).usage.input_tokens for items in (named, sent)]
        assert counts[0] == counts[1] > first.usage.input_tokens + len("Hello, world")
        private = await ask(input=[asked], store=False)
        with pytest.raises(openai.NotFoundError, match="no longer kept"):
            await ask(input=[asked, {"type": "item_reference", "id": private.output[0].id}])


async def test_errors(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        with pytest.raises(openai.NotFoundError, match="model 'nope' not found"):
            await client.responses.create(model="nope", input="hi")
        with pytest.raises(openai.BadRequestError, match="no responses are stored"):
            await client.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
        with pytest.raises(openai.BadRequestError, match="invalid format"):
            wanted = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "thing"}}}
            await client.responses.create(model="tiny", input="hi", text=wanted)


async def test_error_in_mid_stream(tmp_path):
    """STR-3."""
    async with (
        running(tmp_path, fake_command(reply=ids_of("abcdef"), crash_after=3)) as daemon,
        client_of(daemon) as client,
    ):
        types = []
        with pytest.raises(openai.APIError, match="unexpectedly stopped"):
            async for event in await client.responses.create(model="tiny", input="hi", stream=True):
                types.append(event.type)
        assert types[-1] == "response.failed"


async def test_body_may_be_compressed(tmp_path):
    async with running(tmp_path) as daemon:
        data = zstandard.compress(json.dumps({"model": "tiny", "input": "hi"}).encode())
        headers = {"Content-Encoding": "zstd", "Content-Type": "application/json"}
        response = await daemon.session.post(f"{daemon.url}/v1/responses", data=data, headers=headers)
        assert (await response.json())["status"] == "completed"
        broken = await daemon.session.post(f"{daemon.url}/v1/responses", data=b"nothing", headers=headers)
        assert broken.status == 400
