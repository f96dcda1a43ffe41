"""Open WebUI, as published, in headless Chromium against a live daemon with SmolLM2.

Run by scripts/test-openwebui. The browser's side is in the scripts beside this file, which leave a screenshot
of every step in .cache/openwebui/screens; here it is checked what of it reached the daemon.
"""

import asyncio
import hashlib
import json
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import npm
import pytest
from fake_engine import fake_command
from live_daemon import registry, running
from ports import free_port
from tiny_model import CHATML, HERMES, add_model, ids_of

from ftd.daemon.runner import WORKER_COMMAND

pytestmark = pytest.mark.timeout(600)

FOLDER = npm.CACHE / "openwebui"
SERVER = FOLDER / "venv" / "bin" / "open-webui"
SCREENS = FOLDER / "screens"
HERE = Path(__file__).parent
START_S = 120
# 36 tools come with every chat otherwise, and no small model takes tools. A title is asked for beside each
# answer; tags and follow-ups would be more of the same.
LEAN = {
    "DEFAULT_MODEL_METADATA": '{"capabilities":{"builtin_tools":false}}',
    "ENABLE_TAGS_GENERATION": "False",
    "ENABLE_FOLLOW_UP_GENERATION": "False",
}
DOCUMENT = "The secret colour of the lighthouse is turquoise.\nIt was painted in 1911.\n"


def _environment(folder, daemon_url):
    """Settings of Open WebUI: nothing from other machines, embeddings by the daemon."""
    return {
        "PATH": f"{SERVER.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DATA_DIR": str(folder),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "tests-only-tests-only-tests-only",
        "OLLAMA_BASE_URL": daemon_url,
        "ENABLE_OPENAI_API": "False",
        "RAG_EMBEDDING_ENGINE": "ollama",
        "RAG_EMBEDDING_MODEL": "uploaded:latest",
        "RAG_OLLAMA_BASE_URL": daemon_url,
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "ENABLE_VERSION_UPDATE_CHECK": "False",
        "ENABLE_PIP_INSTALL_FRONTMATTER_REQUIREMENTS": "False",
        "ENABLE_COMMUNITY_SHARING": "False",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
        "OMP_NUM_THREADS": "1",
    }


@asynccontextmanager
async def _open_webui(folder, daemon, settings):
    """Start it and wait until it is healthy; yields its address. Its log is .cache/openwebui/log."""
    folder.mkdir()
    port = free_port()
    with (FOLDER / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(SERVER), "serve", "--host", "127.0.0.1", "--port", str(port)),
            env=_environment(folder, daemon.url) | settings,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        await asyncio.wait_for(_healthy(daemon.session, f"http://127.0.0.1:{port}/health", process), START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _healthy(session, url, process):
    while process.returncode is None:
        try:
            async with session.get(url) as response:
                if response.status == 200:
                    return
        except OSError:
            pass
        await asyncio.sleep(0.3)
    raise RuntimeError(f"Open WebUI ended with status {process.returncode}")


async def _publish(daemon, gguf, name):
    """Create a model from a file, push it to the registry in ``name`` and leave nothing of it here."""
    digest = f"sha256:{hashlib.sha256(await asyncio.to_thread(gguf.read_bytes)).hexdigest()}"
    with gguf.open("rb") as file:
        assert (await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=file)).status == 201
    # The same answers every time, and none without end: titles and queries are asked for without a limit
    parameters = {"temperature": 0, "repeat_penalty": 1.2, "num_predict": 200}
    wanted = {"model": name, "files": {"m.gguf": digest}, "parameters": parameters, "stream": False}
    await daemon.json("/api/create", wanted)
    await daemon.json("/api/push", {"model": name, "insecure": True, "stream": False})
    async with daemon.session.delete(f"{daemon.url}/api/delete", json={"model": name}) as response:
        assert response.status == 200
    assert (await daemon.json("/api/tags"))["models"] == []


@pytest.fixture
def browse(capsys, request):
    """A function that runs a script in the browser, shows what it did and which calls reached the daemon."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no browser: apt install chromium")
    packages = npm.installed("openwebui", "playwright-core@1.65.1")
    screens = SCREENS / request.node.name
    shutil.rmtree(screens, ignore_errors=True)
    screens.mkdir(parents=True)

    async def run(script, url, exchanges, *arguments):
        output = ""
        try:
            output = await npm.run_script(packages, script, url, str(screens), *arguments, CHROMIUM=chromium)
        finally:
            with capsys.disabled():
                print(f"\n{output}{_calls(exchanges)}\nscreenshots: {screens}")

    return run


async def test_open_webui(browse, tmp_path, smollm2_gguf):
    gguf = tmp_path / "uploaded.gguf"
    gguf.symlink_to(smollm2_gguf)
    document = tmp_path / "lighthouse.txt"
    document.write_text(DOCUMENT)
    exchanges = []
    async with (
        registry(tmp_path, models=()) as host,
        running(tmp_path, WORKER_COMMAND, models=(), record=exchanges.append) as daemon,
    ):
        name = f"{host}/library/smol:latest"
        await _publish(daemon, smollm2_gguf, name)
        exchanges.clear()
        async with _open_webui(tmp_path / "openwebui", daemon, LEAN) as url:
            await browse(HERE / "openwebui.mjs", url, exchanges, name, str(gguf), str(document))
        left = [model["name"] for model in (await daemon.json("/api/tags"))["models"]]
        assert sorted(left) == sorted([name, "uploaded:latest"])
    failed = [(e.method, e.path, e.status, e.body) for e in exchanges if e.status >= 400]
    assert not failed
    _check_calls(exchanges, name)


def _check_calls(exchanges, name):
    """What a person did arrived here in this form."""
    bodies = {path: [e.body for e in exchanges if e.path == path] for path in {e.path for e in exchanges}}
    assert [body["model"] for body in bodies["/api/pull"]] == [name]
    assert [body["model"] for body in bodies["/api/create"]] == ["uploaded", "made"]
    assert {body["stream"] for body in bodies["/api/chat"]} == {True, False}
    assert any(e.path == "/api/chat" and e.status == 0 for e in exchanges), "the Stop button ends the request"
    assert any(body.get("keep_alive") == 0 for body in bodies["/api/generate"])
    assert [body["model"] for body in bodies["/api/delete"]] == ["made:latest"]
    embedded = [text for body in bodies["/api/embed"] for text in body["input"]]
    assert any("turquoise" in text for text in embedded)
    assert any("turquoise" in json.dumps(body["messages"]) for body in bodies["/api/chat"])


RULES = [
    ("### Task:\nGenerate a concise title", '{"title": "Telling the time"}'),
    ("### Task:\n", '{"follow_ups": ["Why?"], "tags": ["Time"]}'),
    (r"And now\?[^\0]*\0\n\0assistant\n", "It is still late."),
    (r"\0tool\n[^\0]*current_timestamp", "It is late, says the clock."),
    (
        "What time",
        'Let me see.\n<tool_call>\n{"name": "get_current_timestamp", "arguments": {}}\n</tool_call>',
    ),
    ("Ponder", "I ponder.</think>\n\nDone with it."),
]


async def test_open_webui_as_it_comes(browse, tmp_path):
    """Tools with every message, and titles, tags and follow-ups around it; the models are scripted."""
    rules = [(pattern, ids_of(answer)) for pattern, answer in RULES]
    command = fake_command(rules=rules, reply=ids_of("Hello, world"))
    templates = {"tooly": HERMES, "thinker": HERMES + "<think>{# </think> #}", "plain": CHATML}
    exchanges = []
    async with running(tmp_path, command, models=(), record=exchanges.append) as daemon:
        for seed, (name, template) in enumerate(templates.items()):
            # Ids are bytes here: the 36 tools are 25,000 tokens
            window = {"context_length": 131_072, "parameters": {"num_ctx": 131_072}}
            add_model(daemon.store, name, template=template, seed=seed, **window)
        async with _open_webui(tmp_path / "openwebui", daemon, {}) as url:
            await browse(HERE / "openwebui_tools.mjs", url, exchanges)
    chats = [e for e in exchanges if e.path == "/api/chat"]
    assert {e.body["model"] for e in chats if e.status >= 400} == {"plain:latest"}
    first = next(e.body for e in chats if e.body["stream"])
    assert len(first["tools"]) > 20
    results = [m for e in chats for m in e.body["messages"] if m["role"] == "tool"]
    assert results and all("current_timestamp" in message["content"] for message in results)


def _calls(exchanges):
    """One line a kind of call, in the order in which they first came."""
    counts = {}
    for exchange in exchanges:
        key = f"{exchange.method} {exchange.path[:40]} {exchange.status}"
        counts[key] = counts.get(key, 0) + 1
    return "\n".join(f"{count:4} x {key}" for key, count in counts.items())
