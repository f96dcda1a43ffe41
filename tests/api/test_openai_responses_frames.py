"""Events to the objects and events of ``/v1/responses``, in the order that the reference gives."""

import pytest

from ftd.api.jsontext import Fields
from ftd.api.kept_items import KeptItems
from ftd.api.openai_responses import parse_response
from ftd.api.openai_responses_frames import ResponseFrames
from ftd.api.request import Delta, Done, Logprob, ToolCall
from ftd.errors import EngineDied

DONE = Done(reason="stop", prompt_tokens=10, cached_tokens=8, output_tokens=5)
CALL = ToolCall("call_1", 0, "f", {"a": "é"})


def frames(**body):
    fields = Fields({"model": "m", "input": "hi", **body})
    return ResponseFrames(parse_response(fields, KeptItems()), fields)


def stream(*events, **body):
    made = frames(**body)
    return [part for event in events for part in made.events(event)]


def test_stream_of_thinking_text_and_a_call():
    parts = stream(Delta(thinking="hm"), Delta(content="He"), Delta(content="y", tool_calls=[CALL]), DONE)
    assert [part["type"].removeprefix("response.") for part in parts] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))
    assert parts[0]["response"]["status"] == "in_progress" and parts[0]["response"]["output"] == []
    done = [part["item"] for part in parts if part["type"] == "response.output_item.done"]
    assert parts[-1]["response"]["output"] == done
    added = [part["item"]["id"] for part in parts if part["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert done[1]["content"][0]["text"] == "Hey"
    assert (done[2]["call_id"], done[2]["name"], done[2]["arguments"]) == ("call_1", "f", '{"a":"é"}')
    assert [part["output_index"] for part in parts if "output_index" in part] == [0] * 4 + [1] * 7 + [2] * 4
    assert all(part.get("content_index", 0) == part.get("summary_index", 0) == 0 for part in parts)


def test_whole_answer_is_what_the_stream_ends_with():
    whole = frames().whole(Delta(thinking="hm", content="Hey", tool_calls=[CALL]), DONE)
    *_, last = stream(Delta(thinking="hm"), Delta(content="Hey"), Delta(tool_calls=[CALL]), DONE)

    def without_ids(response):
        kept = {
            key: value for key, value in response.items() if key not in ("id", "created_at", "completed_at")
        }
        kept["output"] = [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]
        return kept

    assert without_ids(whole) == without_ids(last["response"])
    assert whole["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("delta", [Delta(), Delta(thinking="hm")])
def test_answer_without_text(delta):
    whole = frames().whole(delta, DONE)
    *_, last = stream(*([] if delta.is_empty else [delta]), DONE)
    types = [item["type"] for item in whole["output"]]
    assert types == [item["type"] for item in last["response"]["output"]]
    assert types == (["message"] if delta.is_empty else ["reasoning"])


def test_answer_cut_short_is_incomplete():
    done = Done(reason="length")
    whole = frames().whole(Delta(content="x"), done)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert stream(Delta(content="x"), done)[-1]["type"] == "response.incomplete"


def test_request_is_said_back():
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    whole = frames(
        instructions="i",
        tools=tools,
        temperature=0,
        max_output_tokens=9,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
    ).whole(Delta(content="x"), DONE)
    assert (whole["instructions"], whole["tools"], whole["temperature"]) == ("i", tools, 0)
    assert (whole["max_output_tokens"], whole["metadata"]) == (9, {"a": "b"})
    assert whole["reasoning"] == {"effort": "low", "summary": None}
    assert (whole["object"], whole["store"], whole["error"]) == ("response", False, None)


def test_logprobs_come_with_their_text():
    entry = Logprob("x", b"x", -0.5, (Logprob("y", b"y", -1.0),))
    parts = stream(Delta(content="x", logprobs=[entry]), DONE, top_logprobs=1)
    (delta,) = [part for part in parts if part["type"] == "response.output_text.delta"]
    assert delta["logprobs"][0]["top_logprobs"][0]["token"] == "y"
    assert parts[-1]["response"]["output"][0]["content"][0]["logprobs"] == delta["logprobs"]


def test_failure_after_the_answer_began():
    made = frames()
    list(made.events(Delta(content="x")))
    failed, error = made.failed(EngineDied("it died"))
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "engine_error", "message": "it died"}
    assert (error["type"], error["message"], error["error"]["message"]) == ("error", "it died", "it died")
    assert error["sequence_number"] == failed["sequence_number"] + 1
