"""Coding agents, as published, in a folder of their own against a live daemon whose model is scripted.

Each is asked for a file; the model calls the agent's own shell tool, and says one sentence when the tool has
answered. Run by scripts/test-agents: the packages take 2 GB, so this file is not collected by itself.
"""

import asyncio
import json
import logging
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass

import npm
import pytest
from fake_engine import fake_command
from live_daemon import running
from tiny_model import HERMES, add_model, ids_of

pytestmark = pytest.mark.timeout(300)

TASK = "Create a file named hello.txt that says: made by an agent"
COMMAND = "echo made by an agent > hello.txt"
DONE = "The file hello.txt is written."
# Ids are bytes here, so the prompt of an agent has as many tokens as characters
WINDOW_TOKENS = 262_144


@dataclass(frozen=True)
class Agent:
    """How one agent is installed, configured and called, and its tool that runs a command.

    files: path under the home folder -> text, in which @url@ stands for the daemon's address.
    cached_share: least part of a prompt that the next one begins with.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    tool: str
    arguments: dict
    path: str
    environment: dict
    files: dict
    wait_s: int = 100
    cached_share: float = 0.99


AGENTS = {
    "claude": Agent(
        packages=("@anthropic-ai/claude-code@2.1.332",),
        command=("claude", "--model", "smol", "-p", "--allowedTools", "Bash", "--", TASK),
        tool="Bash",
        arguments={"command": COMMAND, "description": "write the file"},
        path="/v1/messages?beta=true",
        environment={
            "ANTHROPIC_BASE_URL": "@url@",
            "ANTHROPIC_AUTH_TOKEN": "ollama",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        files={},
    ),
    "codex": Agent(
        packages=("@openai/codex@0.171.0",),
        command=(
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            TASK,
        ),
        tool="exec_command",
        arguments={"cmd": COMMAND},
        path="/v1/responses",
        environment={},
        files={
            ".codex/config.toml": 'model = "smol"\nmodel_provider = "ftd"\n'
            "check_for_update_on_startup = false\n[model_providers.ftd]\n"
            'name = "ftd"\nbase_url = "@url@/v1"\nwire_api = "responses"\n'
            "[analytics]\nenabled = false\n"
        },
    ),
    "codex-oss": Agent(
        packages=("@openai/codex@0.171.0",),
        command=(
            *("codex", "exec", "--oss", "--local-provider", "ollama", "-m", "smol:latest"),
            *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        ),
        tool="exec_command",
        arguments={"cmd": COMMAND},
        path="/v1/responses",
        environment={"CODEX_OSS_BASE_URL": "@url@/v1"},
        files={},
    ),
    "opencode": Agent(
        packages=("opencode-ai@1.18.33",),
        command=("opencode", "run", TASK),
        tool="bash",
        arguments={"command": COMMAND, "description": "write the file"},
        path="/v1/chat/completions",
        environment={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        files={
            ".config/opencode/opencode.json": json.dumps(
                {
                    "autoupdate": False,
                    "share": "disabled",
                    "model": "ftd/smol",
                    "small_model": "ftd/smol",
                    "enabled_providers": ["ftd"],
                    "provider": {
                        "ftd": {
                            "npm": "@ai-sdk/openai-compatible",
                            "name": "ftd",
                            "options": {"baseURL": "@url@/v1"},
                            "models": {
                                "smol": {
                                    "name": "smol",
                                    "tool_call": True,
                                    "limit": {"context": WINDOW_TOKENS, "output": 512},
                                }
                            },
                        }
                    },
                }
            )
        },
    ),
    "openclaw": Agent(
        # It wants a newer Node than most systems have
        packages=("node@24", "openclaw@2026.9.6"),
        command=(
            *("openclaw", "agent", "--local", "--session-id", "t1"),
            *("--message", TASK, "--timeout", "120"),
        ),
        tool="exec",
        arguments={"command": COMMAND},
        path="/api/chat",
        environment={"DO_NOT_TRACK": "1", "OLLAMA_API_KEY": "ollama-local"},
        files={
            ".openclaw/openclaw.json": json.dumps(
                {
                    "agents": {"defaults": {"model": {"primary": "ollama/smol"}, "workspace": "@project@"}},
                    "models": {
                        "providers": {
                            "ollama": {
                                "baseUrl": "@url@",
                                "apiKey": "ollama-local",
                                "api": "ollama",
                                "models": [
                                    {
                                        "id": "smol",
                                        "name": "smol",
                                        "input": ["text"],
                                        "contextTokens": WINDOW_TOKENS,
                                        "params": {"num_ctx": WINDOW_TOKENS},
                                    }
                                ],
                            }
                        }
                    },
                }
            )
        },
        wait_s=250,
    ),
}


def _installed(name):
    """Install the packages one after the other, so that the second runs under the Node that is the first."""
    agent, folder = AGENTS[name], npm.CACHE / "agents" / name.partition("-")[0]
    for count in range(1, len(agent.packages) + 1):
        npm.install(folder, agent.packages[:count], wait_s=600)
    return folder / "node_modules" / ".bin"


async def _run(agent, binaries, tmp_path, url):
    """Run the agent in a fresh repository with a fresh home; returns (status, output)."""
    home, project = tmp_path / "agent-home", tmp_path / "project"
    project.mkdir()
    for name, text in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True)
        path.write_text(text.replace("@url@", url).replace("@project@", str(project)))
    environment = {
        "HOME": str(home),
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **{name: value.replace("@url@", url) for name, value in agent.environment.items()},
    }
    for command in (("git", "init", "-q", "."), agent.command):
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=project,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), agent.wait_s)
        except TimeoutError:
            process.kill()
            output, _ = await process.communicate()
    return process.returncode, output.decode(errors="replace")


@pytest.mark.parametrize("name", AGENTS)
async def test_agent_writes_a_file(name, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    agent = AGENTS[name]
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    binaries = _installed(name)
    call = json.dumps({"name": agent.tool, "arguments": agent.arguments})
    rules = [
        (r"\0tool\n", ids_of(DONE)),
        (rf'"name": "{agent.tool}"', ids_of(f"I will write it.\n<tool_call>\n{call}\n</tool_call>")),
    ]
    exchanges = []
    command = fake_command(rules=rules, reply=ids_of("Writing a file"), remembers=True)
    async with running(tmp_path, command, models=(), record=exchanges.append) as daemon:
        add_model(
            daemon.store,
            "smol",
            template=HERMES,
            context_length=WINDOW_TOKENS,
            parameters={"num_ctx": WINDOW_TOKENS},
        )
        status, output = await _run(agent, binaries, tmp_path, daemon.url)
    prompts = [tuple(map(int, found)) for found in re.findall(r"prompt=(\d+) cached=(\d+)", caplog.text)]
    with capsys.disabled():
        print(f"\n{name}: {_summary(exchanges)}\n  (prompt, cached) tokens: {prompts}")
    assert status == 0, output
    assert DONE in output
    assert (tmp_path / "project" / "hello.txt").read_text() == "made by an agent\n", output
    asked = [exchange for exchange in exchanges if exchange.path == agent.path]
    assert len(asked) >= 2 and all(exchange.status == 200 for exchange in asked)
    # What the tool said comes behind what was said before: the prefix is not computed again
    assert prompts[-1][1] > agent.cached_share * prompts[-2][0], prompts


def _summary(exchanges):
    """Say which paths were called how often, and how large the largest body was."""
    counts = Counter(f"{e.method} {e.path} {e.status}" for e in exchanges)
    largest = max((len(json.dumps(e.body)) for e in exchanges), default=0)
    return ", ".join(f"{count} x {what}" for what, count in counts.items()) + f"; up to {largest} bytes"
