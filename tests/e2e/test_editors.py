"""What editors and their extensions send, typed by hand after their sources, and what they read of answers.

Each reader is as strict as the client it stands for: a key that Zed's decoder needs is looked up, a line that
Continue's expression does not match fails here as it does there.
"""

import json
import re

import pytest
import pytest_asyncio
from fake_engine import fake_command
from live_daemon import running
from tiny_model import HERMES, THINKING, add_model, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>'
RULES = [
    (r"\0tool\n", ids_of("It is empty.")),
    ("read_file", ids_of(f"I will look.\n{CALL}")),
]
READ_FILE = {
    "name": "read_file",
    "description": "Read a file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
FIM = "{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ else }}{{ .Prompt }}{{ end }}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory):
    command = fake_command(rules=RULES, reply=ids_of("Hello, world"))
    async with running(tmp_path_factory.mktemp("daemon"), command, models=()) as daemon:
        parameters = {"num_ctx": 2048, "stop": ["<|im_end|>", "a b"], "temperature": 0.2}
        window = {"llama.context_length": 4096}
        add_model(daemon.store, "smol", template=HERMES, parameters=parameters, **window)
        add_model(daemon.store, "thinker", template=THINKING, seed=1, **window)
        await daemon.json("/api/create", {"model": "coder", "from": "smol", "template": FIM, "stream": False})
        yield daemon


def of_zed(message):
    """Read a message as Zed's decoder does: ``content`` is needed, calls are tagged by ``function``."""
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    calls = message.get("tool_calls") or []
    return message["content"], [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


async def test_zed_lists_models_and_asks_what_they_can(daemon):
    key = {"Authorization": "Bearer ollama"}
    for model in (await daemon.json("/api/tags", headers=key))["models"]:
        assert isinstance(model["size"], int) and model["digest"] and model["modified_at"]
        details = model["details"]
        texts = [details[key] for key in ("format", "family", "parameter_size", "quantization_level")]
        assert all(isinstance(text, str) for text in texts)
        shown = await daemon.json("/api/show", {"model": model["name"]}, headers=key)
        expected = {"smol:latest": "tools", "thinker:latest": "thinking", "coder:latest": "insert"}
        assert expected[model["name"]] in shown["capabilities"]


async def test_zed_chats_with_tools(daemon):
    body = {
        "model": "smol:latest",
        "messages": [
            {"role": "system", "content": "Edit code."},
            {"role": "user", "content": "look at a.py"},
        ],
        "stream": True,
        "keep_alive": -1,
        "options": {
            "num_ctx": 4096,
            "num_predict": None,
            "stop": [],
            "temperature": 1.0,
            "top_p": None,
        },
        "tools": [
            {"type": "function", "function": READ_FILE},
            {"type": "function", "function": {"name": "now", "description": None, "parameters": None}},
        ],
        "think": None,
    }
    parts = await daemon.lines("/api/chat", body)
    assert all(part["model"] == "smol:latest" and part["created_at"] for part in parts)
    texts, calls = zip(*(of_zed(part["message"]) for part in parts), strict=True)
    assert "".join(texts).strip() == "I will look."
    assert [call for part in calls for call in part] == [("read_file", {"path": "a.py"})]
    answered = {
        "role": "assistant",
        "content": "I will look.",
        "tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a.py"}}}],
        "thinking": None,
    }
    body["messages"] += [answered, {"role": "tool", "tool_name": "read_file", "content": ""}]
    parts = await daemon.lines("/api/chat", body)
    assert "".join(of_zed(part["message"])[0] for part in parts) == "It is empty."
    assert parts[-1]["done_reason"] == "stop" and parts[-1]["eval_count"] and parts[-1]["prompt_eval_count"]


async def test_continue_reads_parameters_and_the_template(daemon):
    shown = await daemon.json("/api/show", {"name": "coder"})
    found = {}
    for line in shown["parameters"].split("\n"):
        key, value = re.fullmatch(r'(\S+)\s+((?:".*")|\S+)', line).groups()
        found.setdefault(key, []).append(value)
    assert [json.loads(value) for value in found["stop"]] == ["<|im_end|>", "a b"]
    assert found["num_ctx"] == ["2048"]
    assert ".Suffix" in shown["template"]


async def test_continue_completes_in_the_middle(daemon):
    options = {"temperature": 0.01, "num_predict": 4096, "stop": ["<pre>", "\n\n"], "num_ctx": 2048}
    body = {"model": "coder", "prompt": "def f(", "suffix": "):", "options": options, "keep_alive": 1800}
    parts = await daemon.lines("/api/generate", {**body, "stream": True})
    assert "".join(part["response"] for part in parts) == "Hello, world"
    assert parts[-1]["prompt_eval_count"] == len("<pre>def f(<suf>):<mid>")
    raw = await daemon.lines(
        "/api/generate", {"model": "smol", "prompt": "def", "raw": True, "options": options}
    )
    assert raw[-1]["prompt_eval_count"] == len("def")


async def test_copilot_finds_models_and_streams(daemon):
    version = (await daemon.json("/api/version"))["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    for model in (await daemon.json("/api/tags"))["models"]:
        agent = {"User-Agent": "GitHubCopilotChat/0.40.0"}
        info = (await daemon.json("/api/show", {"model": model["model"]}, headers=agent))["model_info"]
        assert info[f"{info['general.architecture']}.context_length"] == 4096
        assert info["general.basename"] == model["model"]
    body = {
        "model": "smol:latest",
        "messages": [
            {"role": "system", "content": "You are an AI programming assistant."},
            {"role": "user", "content": [{"type": "text", "text": "look at a.py"}]},
        ],
        "temperature": 0.1,
        "top_p": 1,
        "max_tokens": 4096,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": READ_FILE}],
        "tool_choice": "auto",
    }
    *events, end = await daemon.events("/v1/chat/completions", body)
    assert end == "[DONE]"
    chunks = [json.loads(event) for event in events]
    calls = [c for e in chunks if e["choices"] for c in e["choices"][0]["delta"].get("tool_calls") or []]
    assert calls[0]["id"] and calls[0]["index"] == 0 and calls[0]["function"]["name"] == "read_file"
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"path": "a.py"}
    reasons = [e["choices"][0]["finish_reason"] for e in chunks if e["choices"]]
    assert reasons[-1] == "tool_calls" and chunks[-1]["usage"]["completion_tokens"]


async def test_cline_and_aider_chat_without_tools_of_the_api(daemon):
    """Cline describes its tools in the prompt; aider's library asks for the template first."""
    cline = {
        "model": "smol",
        "messages": [
            {"role": "system", "content": "You are Cline."},
            {"role": "user", "content": [{"type": "text", "text": "<task>"}, {"type": "text", "text": "hi"}]},
        ],
        "temperature": 0,
        "stream": True,
    }
    *events, _ = await daemon.events("/v1/chat/completions", cline)
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello, world"
    shown = await daemon.json("/api/show", {"name": "smol"})
    assert shown["model_info"]["llama.context_length"] == 4096 and "tools" in shown["template"]
    aider = {
        "model": "smol",
        "messages": [{"role": "user", "content": "hi", "images": []}],
        "options": {"num_ctx": 4000, "temperature": 0},
        "stream": True,
    }
    parts = await daemon.lines("/api/chat", aider)
    assert "".join(part["message"]["content"] for part in parts) == "Hello, world"
    assert [part["done"] for part in parts].count(True) == 1 and parts[-1]["done_reason"] == "stop"
