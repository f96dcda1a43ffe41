"""Formats on their way to the engine: what it is told, and what a client hears of a bad one."""

import asyncio
import base64
import json
import threading

import pytest
from fake_engine import fake_command
from live_daemon import running
from tiny_model import CHATML, EOS, THINKING, TOOLS, add_model, ids_of

from ftd.daemon import constraint
from ftd.daemon.runner import Runner

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# ends inside of thinking, as templates of models that always think do
INSIDE = THINKING.replace("assistant\n{%", "assistant\n<think>{%")


async def told(daemon, control, worker=None, path="/api/chat", **body):
    """Ask; return the worker, the vocabulary that came first (if one did) and the generate message."""
    asked = asyncio.create_task(
        daemon.post(path, {"model": "tiny", "messages": USER, "stream": False, **body})
    )
    if worker is None:
        worker = await control.next_worker()
        worker.ready()
    message = json.loads(await worker.reader.readline())
    vocabulary = None
    if message["type"] == "vocabulary":
        vocabulary, message = message, await worker.received("generate")
    worker.send("tokens", request_id=message["request_id"], ids=list(b"{}"))
    worker.finish(message["request_id"], output_tokens=2)
    response = await asked
    assert response.status == 200, await response.text()
    return worker, vocabulary, message


async def test_vocabulary_goes_once_and_before_the_first_grammar(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        worker, vocabulary, message = await told(daemon, control)
        assert vocabulary is None and message["grammar"] is None
        _, vocabulary, message = await told(daemon, control, worker, format="json")
        assert [base64.b64decode(token) for token in vocabulary["tokens"][:256]] == [
            bytes([i]) for i in range(256)
        ]
        assert vocabulary["special_ids"] == [256, 257, 258, 259] and vocabulary["eos_ids"] == [EOS]
        (grammar,) = json.loads(message["grammar"]["text"])["grammars"]
        assert grammar["json_schema"]["type"] == "object"
        assert (message["grammar"]["free_until"], message["grammar"]["detours"]) == ("", {})
        _, vocabulary, message = await told(daemon, control, worker, format=SCHEMA)
        assert vocabulary is None
        assert json.loads(message["grammar"]["text"])["grammars"][0]["json_schema"]["required"] == ["a"]


async def test_the_vocabulary_is_written_down_beside_the_event_loop(tmp_path, monkeypatch):
    """It has 150,000 ids or more; and requests that wait for it at once teach it once."""
    threads, taught = [], []
    vocabulary, teach = constraint.vocabulary, Runner.teach

    def noted(tokenizer):
        threads.append(threading.get_ident())
        return vocabulary(tokenizer)

    def counted(runner, message):
        taught.append(message)
        teach(runner, message)

    monkeypatch.setattr(constraint, "vocabulary", noted)
    monkeypatch.setattr(Runner, "teach", counted)
    async with running(tmp_path, fake_command(reply=ids_of("{}"))) as daemon:
        body = {"model": "tiny", "messages": USER, "stream": False}
        await daemon.json("/api/chat", body)
        await asyncio.gather(*(daemon.json("/api/chat", body | {"format": "json"}) for _ in range(3)))
    assert threads and threading.get_ident() not in threads
    assert len(taught) == 1


BOUND = {
    "/api/generate": {"prompt": "x", "format": SCHEMA},
    "/v1/chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    },
    "/v1/completions": {"prompt": "x", "format": SCHEMA},
    "/v1/responses": {
        "input": "x",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    },
    "/v1/messages": {"max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}


async def test_every_api_binds_its_answer(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        worker = None
        for path, body in BOUND.items():
            worker, _, message = await told(daemon, control, worker, path=path, **body)
            (grammar,) = json.loads(message["grammar"]["text"])["grammars"]
            assert grammar["json_schema"]["required"] == ["a"], path


async def test_thinking_is_free(tmp_path, control):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=THINKING)
        worker, _, message = await told(daemon, control, format=SCHEMA)
        detours = {int(token): base64.b64decode(end) for token, end in message["grammar"]["detours"].items()}
        assert detours == {258: b"</think>"}
        _, _, message = await told(daemon, control, worker, format=SCHEMA, think=False)
        assert message["grammar"]["detours"] == {} and message["grammar"]["free_until"] == ""


async def test_prompt_that_ends_inside_of_thinking(tmp_path, control):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=INSIDE)
        _, _, message = await told(daemon, control, format=SCHEMA)
        assert base64.b64decode(message["grammar"]["free_until"]) == b"</think>"


async def test_answer_may_be_a_tool_call_instead(tmp_path, control):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=TOOLS)
        _, _, message = await told(daemon, control, format=SCHEMA, tools=[TOOL])
        assert message["grammar"]["detours"] == {str(ord("<")): ""}


CIRCLE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
STRICT = {"name": "f", "strict": True, "parameters": CIRCLE}
AT = '#/properties/next: $ref "#" leads back here'


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/api/chat", {"format": {"type": "thing"}}, 'invalid format: #/type: "thing" is no type'),
        ("/api/chat", {"format": CIRCLE}, f"invalid format: {AT}"),
        (
            "/api/chat",
            {"tools": [{"type": "function", "function": STRICT}]},
            f"invalid schema of tool f: {AT}",
        ),
        ("/api/generate", {"prompt": "x", "format": "xml"}, 'invalid format: "xml"; expected "json"'),
        ("/api/generate", {"prompt": "x", "format": CIRCLE}, f"invalid format: {AT}"),
        ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "invalid response_format type: xml"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CIRCLE}}},
            f"invalid format: {AT}",
        ),
        (
            "/v1/chat/completions",
            {"tools": [{"type": "function", "function": STRICT}]},
            f"invalid schema of tool f: {AT}",
        ),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": CIRCLE}}},
            f"invalid format: {AT}",
        ),
        (
            "/v1/messages",
            {"max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": CIRCLE}}},
            f"invalid format: {AT}",
        ),
        (
            "/v1/messages",
            {"max_tokens": 5, "tools": [{"name": "f", "strict": True, "input_schema": CIRCLE}]},
            f"invalid schema of tool f: {AT}",
        ),
    ],
)
async def test_bad_format_is_a_400_and_loads_nothing(tmp_path, control, path, body, text):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=TOOLS)
        error = (await daemon.json(path, {"model": "tiny", "messages": USER, **body}, 400))["error"]
        assert text in (error if isinstance(error, str) else error["message"])
        assert (await daemon.json("/api/ps"))["models"] == []
        assert control.workers.empty()


async def test_bare_calls_lose_against_a_format(tmp_path):
    """Every answer in JSON begins as a bare call does: it is the answer, and it streams."""
    text = '{"name": "f", "arguments": {}}'
    bare = CHATML + "{{ tools }}{% if m is defined %}{{ m.tool_calls }}{% endif %}"
    async with running(tmp_path, fake_command(reply=ids_of(text)), models=()) as daemon:
        add_model(daemon.store, "tiny", template=bare)
        body = {"model": "tiny", "messages": USER, "tools": [TOOL]}
        called = await daemon.json("/api/chat", body | {"stream": False})
        assert called["message"]["tool_calls"][0]["function"]["name"] == "f"
        streamed = await daemon.post("/api/chat", body | {"format": SCHEMA})
        lines = [json.loads(line)["message"] for line in (await streamed.text()).splitlines()]
        assert "".join(line["content"] for line in lines) == text and len(lines) > 10
        assert not any("tool_calls" in line for line in lines)
