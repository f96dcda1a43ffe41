"""Rows about windows, loads and models, over real sockets with scripted engines; named after their rows."""

import asyncio
import hashlib
import json
import re

import gguf_bytes
import pytest
from examples import first_quick
from fake_engine import fake_command
from live_daemon import running
from talks import BODIES, CHATS, USER, text_of
from tiny_model import CHATML, HERMES, add_model, ids_of


async def test_emb_1_long_input_is_cut_and_reported_or_refused(tmp_path):
    async with running(tmp_path) as daemon:
        body = {"model": "tiny", "input": "a" * 600, "options": {"num_ctx": 256}}
        cut = await daemon.json("/api/embed", body)
        assert cut["truncated_tokens"] == 344
        own = await daemon.json("/api/embed", body | {"input": "a" * 256})
        assert cut["embeddings"] == own["embeddings"]
        assert await daemon.json("/api/embed", body | {"truncate": True}) | {"x": 1}
        refused = await daemon.json("/api/embed", body | {"truncate": False}, status=400)
        assert "600" in refused["error"] and "256" in refused["error"]


async def test_ctx_1_nothing_of_a_prompt_is_lost_in_silence(tmp_path):
    """The engine answers with its prompt: the secret of the first line comes back, or the loss is told."""
    text = "the secret is 4711\n" + "x" * 1500
    async with running(tmp_path, fake_command()) as daemon:
        for path in (*CHATS, "/api/generate", "/v1/completions"):
            body = {"model": "tiny", **BODIES[path], "options": {"num_ctx": 1024}}
            body |= {"messages": [{"role": "user", "content": text}]} if "messages" in body else {}
            body |= {"input": text} if "input" in body else {"prompt": text} if "prompt" in body else {}
            response = await daemon.post(path, body)
            answer = await response.text()
            if response.status == 200:
                assert "4711" in answer or json.loads(answer)["truncated_tokens"] > 400
            else:
                assert response.status == 400 and "1024" in answer and re.search(r"15\d\d", answer)
            # One message that does not fit cannot be cut either
            assert path == "/api/generate" or response.status == 400


TOO_LONG = {
    "/api/chat": "the prompt is longer than the context length",
    "/v1/chat/completions": "context_length_exceeded",
    "/v1/responses": "context_length_exceeded",
    "/v1/messages": "prompt is too long",
}


def with_tool_result(path, result):
    """A body whose last turn is the result of a call."""
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": {}}}
    turns = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    body = {"model": "tiny", **BODIES[path]}
    if path == "/api/chat":
        body["messages"] = [*turns, {"role": "tool", "content": result, "tool_name": "write"}]
    elif path == "/v1/chat/completions":
        call["function"]["arguments"] = "{}"
        body["messages"] = [*turns, {"role": "tool", "content": result, "tool_call_id": "c1"}]
    elif path == "/v1/responses":
        called = {"type": "function_call", "call_id": "c1", "name": "write", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": result}
        body["input"] = [{"role": "user", "content": "hi"}, called, output]
    else:
        use = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
        block = {"type": "tool_result", "tool_use_id": "c1", "content": result}
        answer = {"role": "assistant", "content": [use]}
        body["messages"] = [*USER, answer, {"role": "user", "content": [block]}]
    return body


async def test_ctx_3_a_tool_result_that_does_not_fit(tmp_path):
    async with running(tmp_path, models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES, context_length=8192)
        for path, words in TOO_LONG.items():
            body = with_tool_result(path, "y" * 12000)
            response = await daemon.post(path, body | {"options": {"num_ctx": 4096}, "truncate": False})
            text = await response.text()
            assert response.status == 400 and words in text and "4096" in text, path


@pytest.mark.parametrize("num_parallel", [1, 4])
async def test_ctx_4_the_window_that_is_told_is_the_one_a_request_has(tmp_path, num_parallel, monkeypatch):
    monkeypatch.setenv("FTD_NUM_PARALLEL", str(num_parallel))
    async with running(tmp_path, fake_command(), models=()) as daemon:
        add_model(daemon.store, "tiny", context_length=98304)
        body = {"model": "tiny", "prompt": "hi", "stream": False, "raw": True}
        await daemon.json("/api/generate", body | {"options": {"num_ctx": 98304}})
        (model,) = (await daemon.json("/api/ps"))["models"]
        window = model["context_length"]
        shown = await daemon.json("/api/show", {"model": "tiny"})
        assert window == 98304 == shown["details"]["context_length"]
        long = body | {"prompt": "z" * (window - 256), "truncate": False, "options": {"num_predict": 3}}
        answers = await asyncio.gather(*(daemon.json("/api/generate", long) for _ in range(num_parallel)))
        assert all(answer["prompt_eval_count"] == window - 256 for answer in answers)


async def test_keep_1_a_smaller_or_no_window_uses_what_is_loaded(tmp_path, control):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", context_length=32768)
        worker = None
        for options in ({"num_ctx": 16384}, {}, {"num_ctx": 2048}, {"num_ctx": 16384}):
            body = {"model": "tiny", **BODIES["/api/chat"], "options": options}
            asked = asyncio.create_task(daemon.json("/api/chat", body))
            if worker is None:
                worker = await control.next_worker()
                worker.ready(16384)
            message = await worker.received("generate")  # the same process, without another load
            worker.finish(message["request_id"])
            await asked


@pytest.mark.parametrize("path", first_quick("/api/chat", "/api/generate", "/v1/completions", *CHATS[1:]))
async def test_load_1_signs_of_life_during_a_long_load(tmp_path, control, monkeypatch, path):
    """They are legal in each format, and what comes after them is a whole answer."""
    monkeypatch.setattr("ftd.daemon.responses.SILENCE_S", 0.02)
    async with running(tmp_path, control.command()) as daemon:
        body = {"model": "tiny", **BODIES[path], "stream": True}
        response = await daemon.session.post(daemon.url + path, json=body)
        worker = await control.next_worker()
        assert response.status == 200 and await response.content.readline()  # before the model is there
        worker.ready()
        message = await worker.received("generate")
        worker.send("tokens", request_id=message["request_id"], ids=ids_of("ok"))
        worker.finish(message["request_id"], output_tokens=2)
        lines = (await response.text()).splitlines()
        if path.startswith("/api"):
            objects = [json.loads(line) for line in lines]
            assert "".join(text_of(path, each) for each in objects) == "ok" and objects[-1]["done"] is True
        else:
            kinds = {line.partition(":")[0] for line in lines if line}
            assert kinds <= {"", "data", "event"} and sum('"ok"' in line for line in lines) >= 1


async def test_load_1_what_fails_after_a_sign_is_the_last_line(tmp_path, control, monkeypatch):
    monkeypatch.setattr("ftd.daemon.responses.SILENCE_S", 0.02)
    async with running(tmp_path, control.command()) as daemon:
        body = {"model": "tiny", **BODIES["/api/chat"], "stream": True}
        response = await daemon.session.post(daemon.url + "/api/chat", json=body)
        worker = await control.next_worker()
        worker.send("failed", kind="OutOfMemory", message="too large")
        *signs, last = (await response.text()).splitlines()
        assert signs and "too large" in json.loads(last)["error"]


ORDERS = {
    "codex": ["developer", "developer", "user", "assistant", "developer", "user"],
    "claude code": ["system", "user", "system", "assistant", "user"],
    "opencode": ["system", "system", "user", "assistant", "user"],
    "starts with an answer": ["assistant", "user"],
    "two users": ["system", "user", "user"],
    "only a system": ["system"],
    "ends with a system": ["user", "system"],
}


async def test_mod_3_roles_in_any_order(tmp_path):
    """With a template that refuses all but user and assistant by turns, after one system message."""
    strict = (
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n"
        "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
        "{% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    )
    async with running(tmp_path, fake_command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=strict)
        for name, order in ORDERS.items():
            messages = [{"role": role, "content": f"word{idx}"} for idx, role in enumerate(order)]
            for path in ("/api/chat", "/v1/chat/completions"):
                answer = await daemon.json(path, {"model": "tiny", "messages": messages, "stream": False})
                said = text_of(path, answer)
                assert all(f"word{idx}" in said for idx in range(len(messages))), (name, said)


async def test_mod_4_from_alone_brings_template_and_end(tmp_path):
    metadata, tensors = gguf_bytes.model(**{"tokenizer.chat_template": CHATML})
    data = gguf_bytes.gguf(metadata, tensors)
    async with running(tmp_path, models=()) as daemon:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=data)
        await daemon.json("/api/create", {"model": "own", "files": {"m.gguf": digest}, "stream": False})
        body = {"model": "own", **BODIES["/api/chat"], "_debug_render_only": True}
        shown = await daemon.json("/api/chat", body)
        assert (
            shown["_debug_info"]["rendered_template"]
            == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )
