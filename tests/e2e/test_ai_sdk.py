"""Vercel's AI SDK against a live daemon, through its providers for Ollama, OpenAI and Anthropic.

Scripted answers: what the model says is given, what the SDK makes of the stream is tested.
"""

from pathlib import Path

import npm
import pytest
from fake_engine import fake_command
from live_daemon import running
from tiny_model import HERMES, THINKING, add_model, ids_of

SCRIPT = Path(__file__).with_name("ai_sdk.mjs")
PACKAGES = (
    *("ai@7.0.173", "ai-sdk-ollama@4.3.0", "zod@4.6.7"),
    *("@ai-sdk/anthropic@4.0.105", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@2.0.92"),
)
_CALLS = (
    'Looking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
)
RULES = [
    (r"\0tool\n[^\0]*\0\n\0assistant\n$", "Both are sunny."),
    ("recipe", '{"name": "Soup", "steps": ["boil", "eat"]}'),
    (r"\0user\n[^\0]*weather[^\0]*\0\n\0assistant\n$", _CALLS),
    ("ponder", "I ponder.</think>\n\nDone."),
]


@pytest.fixture(scope="module")
def packages():
    return npm.installed("e2e-ai-sdk", *PACKAGES)


@pytest.mark.slow
async def test_ai_sdk(tmp_path, packages):
    rules = [(pattern, ids_of(answer)) for pattern, answer in RULES]
    command = fake_command(rules=rules, reply=ids_of("Hello, world"))
    async with running(tmp_path, command, models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        add_model(daemon.store, "thinker", template=THINKING + "<think>", seed=1)
        await npm.run_script(packages, SCRIPT, daemon.url)
