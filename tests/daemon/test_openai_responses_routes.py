"""``/v1/responses`` as it goes over the wire: numbered events, what is kept, failures in mid-stream."""

import json

import pytest
from live_daemon import running, says
from tiny_model import HERMES, add_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = {"model": "tiny", "input": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


async def events(daemon, **body):
    """The events of a stream, numbered from 0 on, whose names must be their types."""
    response = await daemon.post("/v1/responses", {**BODY, "stream": True, **body})
    text = await response.text()
    assert response.status == 200 and response.content_type == "text/event-stream", text
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_deltas_add_up_to_the_text_and_the_last_event_has_the_response(daemon):
    found = await events(daemon, instructions="be kind", metadata={"a": "b"})
    kinds = [event["type"] for event in found]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == found[-4]["text"] == "Hello, world" and len(deltas) > 1
    last = found[-1]["response"]
    assert last["output"] == [found[-2]["item"]] and last["status"] == "completed"
    assert (last["instructions"], last["metadata"]) == ("be kind", {"a": "b"})
    whole = await daemon.json("/v1/responses", BODY)
    assert whole["output"][0]["content"][0]["text"] == "Hello, world"
    assert whole["usage"]["output_tokens"] == last["usage"]["output_tokens"] == 12


async def test_an_answer_that_was_cut_is_incomplete(daemon):
    last = (await events(daemon, max_output_tokens=5))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("is_stream", [True, False])
async def test_items_of_an_answer_can_be_referred_to_unless_they_were_not_stored(daemon, is_stream):

    async def answer(**body):
        if is_stream:
            return (await events(daemon, **body))[-1]["response"]
        return await daemon.json("/v1/responses", BODY | body)

    kept, dropped = await answer(), await answer(store=False)
    for response, status in ((kept, 200), (dropped, 404)):
        item = {"type": "item_reference", "id": response["output"][0]["id"]}
        again = await daemon.json(
            "/v1/responses", BODY | {"input": [item, {"role": "user", "content": "more"}]}, status
        )
        assert ("error" in again and again["error"] is not None) == (status == 404)
        if status == 404:
            assert item["id"] in again["error"]["message"]


async def test_calls_are_items_with_arguments_in_json(tmp_path):
    """Also where the model wrote a number that no JSON may hold."""
    reply = '<tool_call>{"name": "f", "arguments": {"n": -Infinity, "m": 1e999}}</tool_call>'
    async with running(tmp_path, says(reply), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        found = await events(daemon, tools=[TOOL])
        whole = await daemon.json("/v1/responses", BODY | {"tools": [TOOL]})
        deltas = [e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta"]
        for item in (found[-1]["response"]["output"][0], whole["output"][0]):
            assert (item["type"], item["name"], item["status"]) == ("function_call", "f", "completed")
            assert item["arguments"] == "".join(deltas) == '{"n":null,"m":null}'


async def test_a_failure_in_mid_stream_fails_the_response(tmp_path):
    async with running(tmp_path, says("abcdef", crash_after=3)) as daemon:
        *_, failed, error = await events(daemon)
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        assert "out of luck" in failed["response"]["error"]["message"]
        assert error["type"] == "error" and error["message"] == failed["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "no", "input": "x"}, 404, "no"),
        ({"model": "tiny", "input": 5}, 400, "input"),
        ({"model": "tiny", "input": [{"type": "nothing"}]}, 400, 'unknown input item type: "nothing"'),
        ({"model": "tiny", "input": "x", "tool_choice": "required"}, 400, "no tools that can be called here"),
        ({"model": "tiny", "input": "x" * 9000, "num_ctx": 100}, 400, "context"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_failure_before_the_first_event_has_a_status(daemon, body, status, text, is_stream):
    answer = await daemon.json("/v1/responses", body | {"stream": is_stream}, status)
    assert text in answer["error"]["message"]
