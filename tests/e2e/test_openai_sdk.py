"""Chat completions of the ``openai`` package against a live daemon: scripted engines, and SmolLM2 (slow)."""

import json

import openai
import pydantic
import pytest
from fake_engine import fake_command
from live_daemon import running
from tiny_model import TOOLS, add_model, ids_of

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    '<tool_call>{"name": "write", "arguments": {"path": "hello.py", "n": 1}}</tool_call>'
    '<tool_call>{"name": "write", "arguments": {}}</tool_call>'
)


def client_of(daemon):
    return openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0)


async def test_streamed_calls_do_not_merge(tmp_path):
    """TOOL-1: rising index, own id, type, finish reason; arguments are parseable."""
    async with (
        running(tmp_path, fake_command(reply=ids_of(CALLS)), models=()) as daemon,
        client_of(daemon) as client,
    ):
        add_model(daemon.store, "tooly", template=TOOLS)
        body = {"model": "tooly", "messages": USER, "tools": [TOOL]}
        deltas, reasons = [], []
        async for chunk in await client.chat.completions.create(stream=True, **body):
            deltas += chunk.choices[0].delta.tool_calls or []
            reasons.append(chunk.choices[0].finish_reason)
        assert [delta.index for delta in deltas] == [0, 1]
        assert len({delta.id for delta in deltas}) == 2 and {delta.type for delta in deltas} == {"function"}
        assert [json.loads(d.function.arguments) for d in deltas] == [{"path": "hello.py", "n": 1}, {}]
        assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}
        async with client.chat.completions.stream(**body) as stream:
            final = await stream.get_final_completion()
        whole = await client.chat.completions.create(**body)
        assert [call.function.arguments for call in final.choices[0].message.tool_calls] == [
            call.function.arguments for call in whole.choices[0].message.tool_calls
        ]


async def test_logprobs(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        whole = await client.chat.completions.create(
            model="tiny", messages=USER, max_completion_tokens=3, logprobs=True, top_logprobs=2
        )
        entries = whole.choices[0].logprobs.content
        assert [entry.token for entry in entries] == ["H", "e", "l"]
        assert [best.logprob for best in entries[0].top_logprobs] == [-0.25, -1.5]
        assert whole.choices[0].finish_reason == "length"


async def test_usage_only_when_asked_for(tmp_path):
    """API-4."""
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        body = {"model": "tiny", "messages": USER, "stream": True}
        plain = [chunk async for chunk in await client.chat.completions.create(**body)]
        assert all(chunk.choices and chunk.usage is None for chunk in plain)
        counted = await client.chat.completions.create(**body, stream_options={"include_usage": True})
        *_, last = [chunk async for chunk in counted]
        assert last.choices == [] and last.usage.completion_tokens == 12
        assert last.usage.prompt_tokens + 12 == last.usage.total_tokens


async def test_what_cannot_be_is_refused_by_name(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        for body, text in (
            ({"n": 2}, "only one choice is supported: n 2"),
            ({"logit_bias": {"5": 1}}, "not supported: logit_bias"),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
                "json_schema.schema",
            ),
        ):
            with pytest.raises(openai.BadRequestError, match=text):
                await client.chat.completions.create(model="tiny", messages=USER, **body)


async def test_keep_alive_in_the_extra_body(tmp_path):
    """API-1."""
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        await client.chat.completions.create(model="tiny", messages=USER, extra_body={"keep_alive": 0})
        assert (await daemon.json("/api/ps"))["models"] == []


class Step(pydantic.BaseModel):
    """Part of an answer."""

    explanation: str = pydantic.Field(max_length=40)
    value: int = pydantic.Field(ge=0, le=99999)  # digits of a float have no end that a model must reach


class Answer(pydantic.BaseModel):
    """What the model is asked for."""

    steps: list[Step] = pydantic.Field(max_length=2)
    unit: str = pydantic.Field(pattern="^(cm|m|km)$")


@pytest.mark.asyncio(loop_scope="module")
async def test_parsed_answers_of_a_real_model(smol_daemon):
    async with client_of(smol_daemon) as client:
        for seed in range(4):
            done = await client.chat.completions.parse(
                model="smol",
                messages=[{"role": "user", "content": "How far is it from Paris to Rome?"}],
                response_format=Answer,
                temperature=1.0,
                seed=seed,
            )
            assert done.choices[0].finish_reason == "stop"
            assert done.choices[0].message.parsed.unit in ("cm", "m", "km")
            response = await client.responses.parse(model="smol", input="How far?", text_format=Answer)
            assert len(response.output_parsed.steps) <= 2
