"""What real clients send and expect, a test a fact (``CLIENTS`` in ``rows.py``)."""

import asyncio
import hashlib
import json

import gguf_bytes
from fake_engine import fake_command
from live_daemon import registry, running
from tiny_model import CHATML, HERMES, THINKING, add_model, ids_of

USER = [{"role": "user", "content": "hi"}]
NULLS = dict.fromkeys(
    (
        *("mirostat", "mirostat_eta", "mirostat_tau", "num_ctx", "num_gpu", "num_thread", "repeat_last_n"),
        *("seed", "temperature", "tfs_z", "top_k", "top_p", "stop", "num_predict", "unknown_option"),
    )
)


def tool(number):
    parameters = {"type": "object", "properties": {"q": {"type": "string", "description": "d" * 300}}}
    return {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}


async def test_client_1_codex_asks_for_a_version_and_brings_tools_of_all_kinds(tmp_path):
    async with running(tmp_path, models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        version = (await daemon.json("/api/version"))["version"]
        assert tuple(map(int, version.split("."))) >= (0, 13, 4)
        function = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
        space = {"type": "namespace", "name": "multi", "tools": [function]}
        kinds = [function, space, {"type": "web_search"}, {"type": "local_shell"}, {"type": "something_new"}]
        developer = {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be brief."}],
        }
        body = {"model": "tiny", "input": [developer, *USER], "tools": kinds, "tool_choice": "auto"}
        body |= {"parallel_tool_calls": False, "store": False, "include": ["reasoning.encrypted_content"]}
        assert (await daemon.json("/v1/responses", body))["status"] == "completed"


CLAUDE = {
    "model": "tiny",
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": "user_x"},
    "tools": [
        {"name": "Read", "description": "d", "input_schema": {"type": "object"}, "defer_loading": True}
    ],
}


def claude(first_line, reminder):
    """A conversation as it stands two turns later; ``reminder`` is the content of a system message in it."""
    cached = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": first_line}, {"type": "text", "text": "You help.", **cached}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **cached}]},
        {"role": "system", "content": reminder},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
    ]
    return CLAUDE | {"system": system, "messages": messages}


async def prompts(daemon, control, path, *bodies):
    """The ids that the engine gets for each body."""
    found, worker = [], None
    for body in bodies:
        asked = asyncio.create_task(daemon.post(path, body))
        if worker is None:
            worker = await control.next_worker()
            worker.ready(32768)
        message = await worker.received("generate")
        found.append(bytes(min(token, 255) for token in message["ids"]))
        worker.send("tokens", request_id=message["request_id"], ids=ids_of("ok"))
        worker.finish(message["request_id"], output_tokens=2)
        assert (await asked).status == 200
    return found


async def test_client_2_and_3_claude_code_keeps_its_prefix(tmp_path, control):
    """CLIENT-2, CLIENT-3: a list one turn, a string the next, a line that changes: the prompt is the same."""
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES, context_length=65536)
        text = "<system-reminder>Mind the gap.</system-reminder>"
        line = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli; cch=0{};"
        first, second, third = await prompts(
            daemon,
            control,
            "/v1/messages?beta=true",
            claude(
                line.format("abc", 1),
                [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
            ),
            claude(line.format("def", 2), text),
            claude("", text),
        )
        assert first == second == third and b"billing" not in first and b"Mind the gap" in first


async def test_client_4_a_last_message_may_be_taken_back(tmp_path, control):
    """OpenClaw's last user message is not kept: without it the prompts are the same up to there."""
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=CHATML, context_length=65536)
        kept = [{"role": "system", "content": "s" * 300}, *USER, {"role": "assistant", "content": "yes"}]
        inner = {"role": "user", "content": "internal context"}
        body = {"model": "tiny", "stream": False}
        first, second = await prompts(
            daemon,
            control,
            "/api/chat",
            body | {"messages": [*kept, inner]},
            body | {"messages": [*kept, {"role": "user", "content": "next"}, inner]},
        )
        common = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert first[:common].endswith(b"user\n") and b"yes" in first[:common]


async def test_client_5_openclaw(tmp_path, control):
    async with running(tmp_path, control.command(), models=()) as daemon:
        add_model(daemon.store, "tiny", template=THINKING, context_length=65536)
        body = {"model": "tiny", "messages": USER, "stream": True, "truncate": False, "shift": False}
        body |= {"think": False, "options": {"num_ctx": 32768}, "tools": []}
        asked = asyncio.create_task(daemon.post("/api/chat", body))
        worker = await control.next_worker()
        assert worker.load["context_tokens"] == 32768
        worker.ready(32768)
        message = await worker.received("generate")
        assert message["num_keep"] == -1 and message["max_tokens"] == 32768 - len(message["ids"])
        worker.finish(message["request_id"])
        assert (await asked).status == 200


async def test_client_6_open_webui_sends_many_tools_and_a_title_call_beside_them(tmp_path):
    async with running(tmp_path, fake_command(reply=ids_of("ok"), interval_s=0.001), models=()) as daemon:
        add_model(daemon.store, "tooly", template=HERMES, context_length=65536)
        add_model(daemon.store, "tiny", seed=3)
        tools = [tool(number) for number in range(36)]
        title = {"model": "tooly", "messages": USER, "options": {"num_predict": 1000}, "stream": False}
        answer = {"model": "tooly", "messages": USER, "stream": True, "tools": tools}
        responses = await asyncio.gather(*(daemon.post("/api/chat", body) for body in (title, answer, title)))
        assert [response.status for response in responses] == [200] * 3
        refused = await daemon.json("/api/chat", answer | {"model": "tiny"}, status=400)
        assert "does not support tools" in refused["error"]


async def test_client_7_stop_closes_the_socket(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        body = {"model": "tiny", "messages": USER}
        asked = asyncio.create_task(daemon.session.post(f"{daemon.url}/api/chat", json=body))
        worker = await control.next_worker()
        worker.ready()
        message = await worker.received("generate")
        worker.send("tokens", request_id=message["request_id"], ids=ids_of("a"))
        (await asked).close()
        assert (await worker.received("cancel"))["request_id"] == message["request_id"]


async def test_client_8_what_can_fail_fails_before_the_headers(tmp_path):
    """Open WebUI swallows an error line in mid-stream: a status and a JSON object it shows."""
    bodies = (
        ({"model": "none"}, 404),
        ({"options": {"num_ctx": 8}, "truncate": False}, 400),
        ({"format": {"type": "nonsense"}}, 400),
        ({"think": True}, 400),
        ({"tools": [tool(1)]}, 400),
        ({"options": {"temperature": "hot"}}, 400),
    )
    async with running(tmp_path, fake_command(fail_load=["OutOfMemory", "too large"])) as daemon:
        body = {"model": "tiny", "messages": USER, "stream": True}
        response = await daemon.post("/api/chat", body)
        assert response.status >= 400 and "too large" in (await response.json())["error"]
    async with running(tmp_path / "second") as daemon:
        for more, status in bodies:
            response = await daemon.post("/api/chat", body | more)
            assert (response.status, response.content_type) == (status, "application/json"), more
            assert (await response.json())["error"]


async def test_client_9_every_clients_pull_and_delete(tmp_path):
    async with registry(tmp_path, ["far"]) as host, running(tmp_path, models=()) as daemon:
        name = f"{host}/library/far"
        for body in (
            {"name": name, "model": name, "insecure": True},
            {"name": name, "stream": True, "insecure": True},
            {"model": name, "stream": False, "insecure": True},
            {"model": name, "stream": True, "insecure": True},
        ):
            response = await daemon.post("/api/pull", body)
            last = json.loads((await response.text()).splitlines()[-1])
            assert last == {"status": "success"}
            async with daemon.session.delete(f"{daemon.url}/api/delete", json={"model": name}) as deleted:
                assert deleted.status == 200


async def test_client_10_blobs_come_without_a_question_first(tmp_path):
    data = gguf_bytes.gguf(*gguf_bytes.model())
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    async with running(tmp_path, models=()) as daemon:
        response = await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=data)
        assert response.status == 201
        body = {"model": "tiny", "files": {"tiny.gguf": digest}, "stream": False}
        assert (await daemon.json("/api/create", body))["status"] == "success"


async def test_client_11_empty_tools_empty_format_and_nulls(tmp_path):
    async with running(tmp_path) as daemon:
        body = {"model": "tiny", "messages": USER, "stream": False}
        for more in (
            {"tools": []},
            {"format": ""},
            {"format": None},
            {"options": NULLS},
            {"keep_alive": None},
        ):
            assert (await daemon.json("/api/chat", body | more))["done"] is True
        embed = {"model": "tiny", "input": ["a"], "options": NULLS}
        assert len((await daemon.json("/api/embed", embed))["embeddings"]) == 1
        coded = {"model": "tiny", "input": ["a"], "encoding_format": "base64"}
        assert isinstance((await daemon.json("/v1/embeddings", coded))["data"][0]["embedding"], str)


async def test_client_12_claude_code_looks_around(tmp_path):
    async with running(tmp_path) as daemon:
        async with daemon.session.head(f"{daemon.url}/api/hello") as response:
            assert response.status == 404
        headers = {"anthropic-version": "2023-06-01"}
        models = await daemon.json("/v1/models", headers=headers)
        assert models["data"][0]["type"] == "model" and "has_more" in models
        assert (await daemon.json("/v1/models"))["object"] == "list"
