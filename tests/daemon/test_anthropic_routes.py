"""``/v1/messages`` as it goes over the wire: the order of its events, failures in mid-stream, counts."""

import asyncio
import json

import pytest
import pytest_asyncio
from fake_engine import fake_command
from live_daemon import running, says
from tiny_model import CHATML, HERMES, THINKING, add_model, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = [{"role": "user", "content": "hi"}]
BODY = {"model": "tiny", "max_tokens": 50, "messages": USER}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"n": {"type": "number"}}}}


async def events(daemon, **body):
    """The events of a stream, whose names must be their types; comments are left out."""
    response = await daemon.post("/v1/messages", {**BODY, "stream": True, **body})
    text = await response.text()
    assert response.status == 200 and response.content_type == "text/event-stream", text
    found = []
    for block in filter(None, text.split("\n\n")):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def rebuilt(found):
    """The message that a client builds of events, as Anthropic's documentation says."""
    message, blocks = dict(found[0]["message"]), []
    for event in found[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]) | {"partial": ""})
        elif kind == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                block["partial"] += delta["partial_json"]
            else:
                block[block["type"]] += delta[block["type"]]
        elif kind == "content_block_stop":
            block = blocks[event["index"]]
            if partial := block.pop("partial"):
                block["input"] = json.loads(partial)
        elif kind == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert found[-1]["type"] == "message_stop" and not any("partial" in block for block in blocks)
    return message | {"content": blocks}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(tmp_path_factory):
    """A daemon whose engine answers what the user asks for."""
    rules = [["plain", "Hello"], ["stop", "one STOP two"], ["think", "<think>hm</think>Yes"]]
    rules.append(["call", f"Look: {CALL}{CALL}"])
    command = fake_command(rules=[[f"user\n{word}", ids_of(text)] for word, text in rules])
    async with running(tmp_path_factory.mktemp("scripted"), command, models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES + THINKING.removeprefix(CHATML))
        yield daemon


CALL = '<tool_call>{"name": "f", "arguments": {"n": NaN, "s": "<x>"}}</tool_call>'


@pytest.mark.parametrize(
    ("word", "body", "content", "stop_reason"),
    [
        ("plain", {}, [{"type": "text", "text": "Hello"}], "end_turn"),
        ("plain", {"max_tokens": 3}, [{"type": "text", "text": "Hel"}], "max_tokens"),
        ("stop", {"stop_sequences": ["STOP"]}, [{"type": "text", "text": "one "}], "stop_sequence"),
        (
            "think",
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Yes"}],
            "end_turn",
        ),
        (
            # numbers that no JSON may hold must not end the answer
            "call",
            {"tools": [TOOL], "max_tokens": 500},
            [
                {"type": "text", "text": "Look: "},
                {"type": "tool_use", "name": "f", "input": {"n": None, "s": "<x>"}},
                {"type": "tool_use", "name": "f", "input": {"n": None, "s": "<x>"}},
            ],
            "tool_use",
        ),
    ],
)
async def test_a_stream_builds_the_message_of_one_piece(scripted, word, body, content, stop_reason):
    body = {"messages": [{"role": "user", "content": word}], **body}
    whole = await scripted.json("/v1/messages", BODY | body)
    streamed = rebuilt(await events(scripted, **body))
    for message in (whole, streamed):
        ids = [block.pop("id") for block in message["content"] if block["type"] == "tool_use"]
        assert len(set(ids)) == len(ids)
        assert message["content"] == content
        assert (message["stop_reason"], message["role"], message["type"]) == (
            stop_reason,
            "assistant",
            "message",
        )
    assert whole["usage"] == streamed["usage"]
    assert whole["id"] != streamed["id"] and whole["id"].startswith("msg_")


async def test_the_first_event_tells_the_length_of_the_prompt(daemon):
    (first, *_, delta, _) = await events(daemon)
    count = (await daemon.json("/v1/messages/count_tokens", {"model": "tiny", "messages": USER}))[
        "input_tokens"
    ]
    assert first["message"]["usage"]["input_tokens"] == count > 2
    assert first["message"]["content"] == [] and first["message"]["stop_reason"] is None
    assert delta["usage"]["input_tokens"] == count and delta["usage"]["output_tokens"] == 12


async def test_counting_loads_nothing_and_knows_no_window(tmp_path, module_control):
    async with running(tmp_path, module_control.command()) as daemon:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 10_000}]}
        assert (await daemon.json("/v1/messages/count_tokens", body))["input_tokens"] > 10_000
        assert module_control.workers.empty() and (await daemon.json("/api/ps"))["models"] == []


async def test_a_failure_in_mid_stream_is_an_event_and_the_last(tmp_path):
    async with running(tmp_path, says("abcdef", crash_after=3)) as daemon:
        found = await events(daemon)
        assert [event["delta"]["text"] for event in found if event["type"] == "content_block_delta"] == [
            *"abc"
        ]
        assert found[-1]["type"] == "error" and "out of luck" in found[-1]["error"]["message"]
        assert found[-1]["error"]["type"] == "api_error"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_failure_before_the_first_event_has_a_status(daemon, is_stream):
    missing = await daemon.json("/v1/messages", BODY | {"model": "no", "stream": is_stream}, 404)
    assert missing["type"] == "error" and missing["error"]["type"] == "not_found_error"
    bad = await daemon.json("/v1/messages", {"model": "tiny", "stream": is_stream}, 400)
    assert bad["error"]["type"] == "invalid_request_error"


async def test_while_nothing_can_be_said_a_comment_is(tmp_path, module_control, monkeypatch):
    monkeypatch.setattr("ftd.daemon.responses.SILENCE_S", 0.02)
    async with running(tmp_path, module_control.command()) as daemon:
        asked = asyncio.create_task(
            daemon.session.post(daemon.url + "/v1/messages", json=BODY | {"stream": True})
        )
        worker = await module_control.next_worker()
        response = await asked  # its head comes with the first comment: the engine has loaded nothing yet
        assert await response.content.readline() == b": working\n"
        worker.ready()
        worker.finish((await worker.received("generate"))["request_id"])
        text = (await response.read()).decode()
        assert "event: message_stop" in text and "event: error" not in text
