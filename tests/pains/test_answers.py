"""Rows of ``rows.py`` about answers, over real sockets with scripted engines; tests are named after rows."""

import asyncio
import hashlib
import itertools
import json
import re
from datetime import UTC, datetime, timedelta

import gguf_bytes
import ollama
import pytest
from examples import first_quick
from fake_engine import fake_command
from live_daemon import running, says
from talks import ANTHROPIC_TOOL, BODIES, CHATS, TOOL, USER, Scripted, text_of
from tiny_model import CHATML, HERMES, THINKING, add_model, ids_of

TYPESCRIPT = "export const a = {\n  b: `${c}`,\n};\n" * 20


async def test_api_1_keep_alive_is_honoured_everywhere(tmp_path):
    async with running(tmp_path) as daemon:
        for path, more in BODIES.items():
            body = {"model": "tiny", **more}
            await daemon.json(path, body | {"keep_alive": "30s"})
            (model,) = (await daemon.json("/api/ps"))["models"]
            left = datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)
            assert timedelta(seconds=10) < left < timedelta(seconds=31), path
        for path, more in BODIES.items():
            await daemon.json(path, {"model": "tiny", **more, "keep_alive": 0})
            assert (await daemon.json("/api/ps"))["models"] == [], path


async def test_api_3_show_has_what_clients_require(tmp_path):
    async with running(tmp_path, models=()) as daemon:
        add_model(daemon.store, "plain")
        add_model(daemon.store, "bare", template="")
        add_model(daemon.store, "system", system="Be brief.", parameters={"temperature": 0.5, "stop": ["x"]})
        add_model(daemon.store, "embedder", template="", **{"llama.pooling_type": 1})
        async with ollama.AsyncClient(daemon.url) as client:
            listed = (await client.list()).models
            assert len(listed) == 4
            for model in listed:
                shown = await client.show(model.model)
                assert shown.modelinfo and shown.details.family == "llama" and shown.modified_at
                raw = await daemon.json("/api/show", {"model": model.model})
                assert {"modelfile", "details", "model_info", "modified_at", "capabilities"} <= raw.keys()


async def test_api_5_num_ctx_and_think_on_v1(tmp_path):
    async with running(tmp_path, says("<think>hm</think>yes"), models=()) as daemon:
        add_model(daemon.store, "tiny", template=THINKING, context_length=32768)
        body = {"model": "tiny", "messages": USER, "options": {"num_ctx": 16384}, "think": True}
        answer = await daemon.json("/v1/chat/completions", body)
        assert answer["choices"][0]["message"]["reasoning"] == "hm"
        (model,) = (await daemon.json("/api/ps"))["models"]
        assert model["context_length"] == 16384
        long = [{"role": "user", "content": "x" * 6000}]
        answer = await daemon.json("/v1/chat/completions", body | {"messages": long})
        assert answer["usage"]["prompt_tokens"] > 6000
        refused = await daemon.json("/v1/chat/completions", body | {"think": 3}, status=400)
        assert "think" in refused["error"]["message"]


async def test_api_6_a_chat_during_a_load_waits(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        asked = asyncio.create_task(daemon.json("/api/chat", {"model": "tiny", **BODIES["/api/chat"]}))
        worker = await control.next_worker()
        assert (await daemon.get("/health")).status == 200
        assert (await daemon.get("/ready")).status in (200, 503)
        assert not asked.done()
        worker.ready()
        message = await worker.received("generate")
        worker.send("tokens", request_id=message["request_id"], ids=ids_of("ok"))
        worker.finish(message["request_id"], output_tokens=2)
        assert (await asked)["message"]["content"] == "ok"


@pytest.mark.parametrize(
    "reply", ["Hello", '<tool_call>{"name": "write", "arguments": {"path": "a"}}</tool_call>']
)
async def test_str_1_exactly_one_end(tmp_path, reply):
    async with running(tmp_path, says(reply), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        response = await daemon.post("/api/chat", {"model": "tiny", "messages": USER, "tools": [TOOL]})
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


async def test_str_1_a_call_that_grows_is_not_silence(tmp_path, monkeypatch):
    """STR-1: while a long call is collected, objects without text say that the answer goes on."""
    monkeypatch.setattr("ftd.daemon.completion.SILENCE_NS", 0)
    call = f"<tool_call>{json.dumps({'name': 'write', 'arguments': {'path': TYPESCRIPT}})}</tool_call>"
    async with running(tmp_path, says(call), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        response = await daemon.post("/api/chat", {"model": "tiny", "messages": USER, "tools": [TOOL]})
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert len(lines) > len(call) // 2
        (calls,) = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
        assert calls[0]["function"]["arguments"]["path"] == TYPESCRIPT


ENDS = {
    "/api/chat": rb'^\{"error":"[^"]+"',
    "/v1/chat/completions": rb'^data: \{"error":\{"message":',
    "/v1/messages": rb"^event: error$",
    "/v1/responses": rb"^event: error$",
}


async def test_str_3_a_failure_in_mid_stream_is_told(tmp_path):
    async with running(tmp_path, says("abcdefgh", crash_after=5, interval_s=0.01)) as daemon:
        for path, end in ENDS.items():
            body = {"model": "tiny", **BODIES[path], "stream": True}
            text = await (await daemon.post(path, body)).read()
            assert b"a" in text and re.search(end, text, re.MULTILINE), text
            assert not text.rstrip().endswith(b"[DONE]")


MALFORMED = (
    '<tool_call>{"name": "write", "arguments": {"path": "a"}}]</tool_call>',
    f'<tool_call>{{"name": "write", "arguments": {{"path": "{TYPESCRIPT}"}}}}</tool_call>',
    '<tool_call>{"name": "write", "arguments": {"path": "a"}</tool_call>',
    "<tool_call>{'name': 'write', 'arguments': {'path': 'a'}}</tool_call>",
    # from here on they are content
    '<tool_call>{"name": write}</tool_call>',
    '<tool_call>{"name": "write", "argu',
    "<tool_call></tool_call>",
    "</tool_call>",
    '<tool_call>[[[[[{"name":',
)


NUM_REPAIRED = 4


@pytest.mark.parametrize("path", first_quick(*CHATS))
async def test_tool_4_malformed_calls_are_repaired_or_content(tmp_path, control, path):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        scripted = Scripted(daemon, control)
        tools = [ANTHROPIC_TOOL] if path == "/v1/messages" else [TOOL]
        if path == "/v1/responses":
            tools = [{"type": "function", **TOOL["function"]}]
        body = {**BODIES[path], "tools": tools, "max_tokens": 4000}
        for (idx, reply), is_stream in itertools.product(enumerate(MALFORMED), (False, True)):
            response = await scripted.post(path, body | {"stream": is_stream}, reply)
            text = await response.text()
            assert response.status == 200 and '"error":{' not in text, text
            if not is_stream:
                assert "write" in text if idx < NUM_REPAIRED else text_of(path, json.loads(text)), text


async def test_tool_7_a_gguf_whose_template_knows_tools_has_tools(tmp_path):
    """The template comes with the file; nobody writes one."""
    metadata, tensors = gguf_bytes.model(**{"tokenizer.chat_template": HERMES})
    data = gguf_bytes.gguf(metadata, tensors)
    async with running(tmp_path, says("ok"), models=()) as daemon:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=data)
        body = {"model": "own", "files": {"m.gguf": digest}, "stream": False}
        await daemon.json("/api/create", body)
        shown = await daemon.json("/api/show", {"model": "own"})
        assert "tools" in shown["capabilities"]
        response = await daemon.post("/api/chat", {"model": "own", "messages": USER, "tools": [TOOL]})
        assert response.status == 200


CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{# <|channel|> reasoning_effort tools #}<|start|>assistant"
)
CHANNEL_REPLY = (
    "<|channel|>analysis<|message|>I must write.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "Writing.<|end|><|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
    '{"path": "a", "n": 2}<|call|>'
)


@pytest.mark.parametrize("path", first_quick(*CHATS))
async def test_tool_3_channels_of_gpt_oss_through_every_api(tmp_path, control, path):
    """Thinking, content and the call are apart, whether thinking was asked for or not."""
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=CHANNELS)
        scripted = Scripted(daemon, control)
        tools = [ANTHROPIC_TOOL] if path == "/v1/messages" else [TOOL]
        if path == "/v1/responses":
            tools = [{"type": "function", **TOOL["function"]}]
        body = {**BODIES[path], "tools": tools, "max_tokens": 500}
        for more in ({}, {"think": False} if path == "/api/chat" else {}):
            answer = json.loads(await (await scripted.post(path, body | more, CHANNEL_REPLY)).text())
            assert text_of(path, answer) == "Writing."
            said = json.dumps(answer.get("output", answer))
            assert said.count("I must write.") >= 1 and said.count('"write"') == 1 and "<|" not in said
        response = await scripted.post(path, body | {"stream": True}, CHANNEL_REPLY)
        text = await response.text()
        assert "<|" not in text and "channel" not in text and text.count("write") >= 1


THOUGHTS = (
    "<think>secret</think>yes",
    "<think>secret</think>\n\nyes",
    "yes",
    "</think>yes",
    "\n</think>\n\nyes",
)


async def test_think_1_no_thinking_in_content(tmp_path, control):
    """In generate and chat, streamed and not; what is thought though it was not to be is in ``thinking``."""
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES + "{# <think> </think> #}")
        scripted = Scripted(daemon, control)
        for reply, think in itertools.product(THOUGHTS, (True, False, None, "low")):
            if think is not False and reply.lstrip().startswith("</think>"):
                continue  # a closing tag alone, where thinking is on, is the model's own text
            for path, tools in (("/api/chat", {}), ("/api/chat", {"tools": [TOOL]}), ("/api/generate", {})):
                body = BODIES[path] | tools | ({} if think is None else {"think": think})
                whole = json.loads(await (await scripted.post(path, body, reply)).text())
                response = await scripted.post(path, body | {"stream": True}, reply)
                lines = [json.loads(line) for line in (await response.text()).splitlines()]
                streamed = "".join(text_of(path, line) for line in lines)
                assert text_of(path, whole).strip() == "yes" and streamed.strip() == "yes"


@pytest.mark.parametrize(("template", "thinks"), [(THINKING, True), (CHATML, False)])
async def test_think_2_capability_flag_and_answer_agree(tmp_path, template, thinks):
    async with running(tmp_path, says("<think>hm</think>yes"), models=()) as daemon:
        add_model(daemon.store, "tiny", template=template)
        shown = await daemon.json("/api/show", {"model": "tiny"})
        assert ("thinking" in shown["capabilities"]) == thinks
        body = {"model": "tiny", **BODIES["/api/chat"], "think": True}
        answer = await daemon.json("/api/chat", body, status=200 if thinks else 400)
        assert answer["message"]["thinking"] == "hm" if thinks else "does not support" in answer["error"]


EMOJI = "👩‍👩‍👧‍👦🇸🇪 한국어 ནམ་"


async def test_tok_1_no_character_is_split(tmp_path):
    """For each limit: the stream is the whole; only a character cut by the limit is a U+FFFD, at the end."""
    data = EMOJI.encode()
    async with running(tmp_path, fake_command(reply=list(data))) as daemon:
        for path, limit in itertools.product(("/api/generate", "/api/chat"), range(1, 41, 3)):
            body = {"model": "tiny", **BODIES[path], "options": {"num_predict": limit}}
            whole = text_of(path, await daemon.json(path, body))
            lines = (await (await daemon.post(path, body | {"stream": True})).text()).splitlines()
            pieces = [text_of(path, json.loads(line)) for line in lines]
            assert "".join(pieces) == whole == data[:limit].decode("utf-8", "replace")
            assert not any("\ufffd" in piece for piece in pieces[:-2])
