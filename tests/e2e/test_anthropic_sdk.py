"""The ``anthropic`` package against a live daemon with scripted engines."""

import asyncio
import json

import anthropic
import pytest
from fake_engine import controlling, fake_command
from live_daemon import running
from tiny_model import THINKING, TOOLS, add_model, ids_of

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "hi"}]
WEATHER = {
    "name": "get_weather",
    "description": "weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLS = (
    'Let me look.<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>'
)


def client_of(daemon):
    return anthropic.AsyncAnthropic(base_url=daemon.url, api_key="x", max_retries=0)


async def test_messages_and_stream(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        message = await client.messages.create(model="tiny", max_tokens=50, messages=USER, system="s")
        assert message.content[0].text == "Hello, world"
        assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 12)
        assert message.usage.input_tokens > 0 and message.usage.cache_read_input_tokens == 0
        async with client.messages.stream(model="tiny", max_tokens=5, messages=USER) as stream:
            text = "".join([part async for part in stream.text_stream])
            final = await stream.get_final_message()
        assert text == final.content[0].text == "Hello"
        assert final.stop_reason == "max_tokens"
        stopped = await client.messages.create(
            model="tiny", max_tokens=50, messages=USER, stop_sequences=[", w"]
        )
        assert (stopped.content[0].text, stopped.stop_reason) == ("Hello", "stop_sequence")
        assert stopped.stop_sequence == ", w"


async def test_count_is_what_the_prompt_has(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        body = {"model": "tiny", "messages": USER, "system": "be brief"}
        counted = await client.messages.count_tokens(**body)
        message = await client.messages.create(max_tokens=1, **body)
        assert counted.input_tokens == message.usage.input_tokens


async def test_tool_use_and_result(tmp_path):
    """TOOL-1: two calls have two ids and parseable arguments."""
    async with (
        running(tmp_path, fake_command(reply=ids_of(CALLS)), models=()) as daemon,
        client_of(daemon) as client,
    ):
        add_model(daemon.store, "tooly", template=TOOLS)
        body = {"model": "tooly", "max_tokens": 500, "messages": USER, "tools": [WEATHER]}
        message = await client.messages.create(**body)
        text, *calls = message.content
        assert (text.type, text.text, message.stop_reason) == ("text", "Let me look.", "tool_use")
        assert [(call.name, call.input["city"]) for call in calls] == [
            ("get_weather", "Paris"),
            ("get_weather", "Bonn"),
        ]
        assert len({call.id for call in calls}) == 2
        async with client.messages.stream(**body) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_message()
        assert [block.model_dump(exclude={"id"}) for block in final.content] == [
            block.model_dump(exclude={"id"}) for block in message.content
        ]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
        again = [
            *USER,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        assert (await client.messages.create(**body | {"messages": again})).stop_reason == "tool_use"


async def test_thinking_blocks(tmp_path):
    async with (
        running(tmp_path, fake_command(reply=ids_of("<think>hm</think>yes")), models=()) as daemon,
        client_of(daemon) as client,
    ):
        add_model(daemon.store, "thinker", template=THINKING)
        add_model(daemon.store, "tiny", seed=1)
        body = {"model": "thinker", "max_tokens": 99, "messages": USER}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        message = await client.messages.create(thinking=thinking, **body)
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert (message.content[0].thinking, message.content[1].text) == ("hm", "yes")
        async with client.messages.stream(thinking=thinking, **body) as stream:
            final = await stream.get_final_message()
        assert (final.content[0].thinking, final.content[1].text) == ("hm", "yes")
        # a model that cannot think is asked all the same
        plain = await client.messages.create(thinking=thinking, **body | {"model": "tiny"})
        assert plain.content[0].type == "text"


async def test_errors_are_the_sdks_own(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        with pytest.raises(anthropic.NotFoundError, match="model 'nope' not found") as missing:
            await client.messages.create(model="nope", max_tokens=5, messages=USER)
        assert missing.value.body["type"] == "error" and missing.value.body["request_id"].startswith("req_")
        assert missing.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(
                model="tiny",
                max_tokens=5,
                messages=[{"role": "user", "content": "x" * 500}],
                extra_body={"num_ctx": 64},
            )
        with pytest.raises(anthropic.BadRequestError, match="invalid format"):
            wanted = {"type": "json_schema", "schema": {"type": "thing"}}
            await client.messages.create(
                model="tiny", max_tokens=5, messages=USER, extra_body={"output_config": {"format": wanted}}
            )


async def test_error_in_mid_stream_is_an_event(tmp_path):
    """STR-3."""
    async with (
        running(tmp_path, fake_command(reply=ids_of("abcdef"), crash_after=3)) as daemon,
        client_of(daemon) as client,
    ):
        stream = await client.messages.create(model="tiny", max_tokens=9, messages=USER, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="unexpectedly stopped"):
            async for _ in stream:
                pass


async def test_models_have_anthropics_shape(tmp_path):
    async with running(tmp_path) as daemon, client_of(daemon) as client:
        listed = await client.models.list()
        assert [(model.id, model.type) for model in listed.data] == [("tiny:latest", "model")]
        assert (await client.models.retrieve("tiny")).display_name == "tiny"


async def test_what_claude_code_sends(tmp_path):
    """All of it is accepted, and the prefix survives the billing line (PFX-1)."""
    async with controlling(tmp_path) as control, running(tmp_path, control.command()) as daemon:

        async def ask(checksum):
            body = {
                "model": "tiny",
                "max_tokens": 32000,
                "stream": False,
                "thinking": {"type": "adaptive", "display": "omitted"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
                "output_config": {"effort": "high"},
                "metadata": {"user_id": "u"},
                "system": [
                    {
                        "type": "text",
                        "text": f"x-anthropic-billing-header: cc_version=2.{checksum}; cch={checksum};",
                    },
                    {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
                ],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                    {"role": "system", "content": [{"type": "text", "text": "reminder"}]},
                ],
            }
            return await daemon.post("/v1/messages?beta=true", body, headers={"anthropic-beta": "x"})

        prompts = []
        first = asyncio.create_task(ask("abc"))
        worker = await control.next_worker()
        worker.ready()
        for task in (first, asyncio.create_task(ask("def"))):
            message = await worker.received("generate")
            prompts.append(message["ids"])
            worker.send("tokens", request_id=message["request_id"], ids=[104])
            worker.finish(message["request_id"], output_tokens=1)
            response = await task
            assert response.status == 200, await response.text()
            usage = json.loads(await response.text())["usage"]
            assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (2, 1)
        assert prompts[0] == prompts[1]
        assert b"You are Claude Code." in bytes(token for token in prompts[0] if token < 256)


@pytest.mark.asyncio(loop_scope="module")
async def test_prefix_is_reused_by_a_real_model(smol_daemon):
    """PFX-1: two calls that differ in the billing line only; the second one computes next to nothing."""
    rules = " ".join(f"Rule {number}: be brief." for number in range(100))

    async def usage_with(checksum):
        line = f"x-anthropic-billing-header: cc_version=2.1.332.{checksum}; cch={checksum};\n"
        async with client_of(smol_daemon) as client:
            message = await client.messages.create(
                model="smol", max_tokens=4, messages=USER, system=line + rules
            )
        return message.usage

    first, second = await usage_with("abc"), await usage_with("d05")
    whole = first.input_tokens + first.cache_read_input_tokens
    assert whole > 500
    assert second.input_tokens + second.cache_read_input_tokens == whole
    assert second.input_tokens <= 64 < second.cache_read_input_tokens
