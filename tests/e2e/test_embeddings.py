"""A real embedding model, all-MiniLM-L6-v2, created by the CLI's request and asked over HTTP.

Checked against what transformers computes with the publisher's pipeline (mean of the states, length 1), and
against the sentences whose likeness its card shows.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
from live_daemon import running

from ftd.chat.modelfile import parse_modelfile
from ftd.cli.create import request
from ftd.daemon.runner import WORKER_COMMAND

pytestmark = pytest.mark.slow

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "",
    " ",
    "Hellö 你好 😀:",
    "why is the sky blue?",
]
LONG = "the quick brown fox jumps over the lazy dog " * 60


@pytest.fixture(scope="module")
def folder(real_model: Callable[[str], Path]) -> Path:
    """The publisher's folder."""
    return real_model("minilm")


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    """What the publisher's pipeline makes of SENTENCES, by transformers."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).float().eval()
    rows = []
    with torch.no_grad():
        for text in SENTENCES:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            state = model(ids).last_hidden_state[0].mean(dim=0).numpy().astype(np.float64)
            rows.append(state / np.linalg.norm(state))
    return np.array(rows)


@pytest.fixture
async def daemon(tmp_path: Path, folder: Path):
    async with running(tmp_path, WORKER_COMMAND, models=()) as daemon:
        body, uploads = request("minilm", parse_modelfile(f"FROM {folder}".encode()), folder)
        for field, name, file in uploads:
            digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
            with file.open("rb") as data:
                await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=data)
            body[field][name] = digest
        created = await daemon.post("/api/create", body)
        assert '{"status":"success"}' in await created.text()
        yield daemon


async def test_a_real_embedding_model(daemon, expected) -> None:
    shown = await daemon.json("/api/show", {"model": "minilm"})
    assert shown["capabilities"] == ["embedding"] and shown["parameters"].split() == ["num_ctx", "256"]
    client = ollama.AsyncClient(daemon.url, timeout=250)
    batch = np.array((await client.embed("minilm", SENTENCES)).embeddings)
    np.testing.assert_allclose(batch, expected, atol=2e-4)
    assert batch[0] @ batch[1] > 0.7 and batch[0] @ batch[2] < 0.3

    # one by one, at the same time: the same vectors in the same order
    alone = await asyncio.gather(*(client.embed("minilm", text or [""]) for text in SENTENCES))
    np.testing.assert_array_equal([answer.embeddings[0] for answer in alone], batch)

    # a long text is that of its first tokens and the end token, unless that is not wanted
    body = {"model": "minilm", "input": LONG}
    cut = await daemon.json("/api/embed", body)
    assert cut["prompt_eval_count"] == 256 and cut["truncated_tokens"] == 286
    first = await daemon.json("/api/embed", body | {"input": " ".join(LONG.split()[:254])})
    np.testing.assert_array_equal(cut["embeddings"], first["embeddings"])
    refused = await daemon.json("/api/embed", body | {"truncate": False}, status=400)
    assert "input 0 has 542 tokens, the context length is 256" in refused["error"]

    assert (
        "does not support generate"
        in (await daemon.json("/api/generate", {"model": "minilm", "prompt": "x"}, status=400))["error"]
    )
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x") as theirs:
        answer = await theirs.embeddings.create(model="minilm", input=SENTENCES)
        np.testing.assert_allclose([row.embedding for row in answer.data], batch, atol=1e-7)
    await client.close()
