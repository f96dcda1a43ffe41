"""A daemon with the real engine and SmolLM2, created over HTTP, for the slow tests of a module."""

from pathlib import Path

import pytest
import pytest_asyncio
from live_daemon import running_real

# Slow as a whole; to import them or to install their packages takes as long as hundreds of other tests
_SLOW_MODULES = (
    "test_ai_sdk.py",
    "test_anthropic_sdk.py",
    "test_embeddings.py",
    "test_langchain.py",
    "test_ollama_js.py",
    "test_openai_responses_sdk.py",
    "test_openai_sdk.py",
    "test_tool_choice.py",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the slow modules alone where slow tests do not run."""
    is_left_out = collection_path.name in _SLOW_MODULES and "not slow" in config.option.markexpr
    return True if is_left_out else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol_daemon(tmp_path_factory, smollm2_gguf):
    """The model is called ``smol``."""
    async with running_real(tmp_path_factory.mktemp("daemon"), smollm2_gguf) as daemon:
        yield daemon
