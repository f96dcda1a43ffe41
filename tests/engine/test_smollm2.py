"""A real model, SmolLM2-135M-Instruct Q4_1: its greedy texts are those that transformers gives in float32."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import tokenizers

from ftd.engine.messages import Load
from ftd.ftw.format import TOKENIZER_MEDIA_TYPE
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.sink import DirectorySink
from tests.engine.serving import Serving

pytestmark = pytest.mark.slow

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
FACTORIAL = """```python
def factorial(n):
    if n == 0:
        return 1
    else:
        return n * factorial(n - 1)
```"""
BLUE_SKY = (
    "The sky is blue because of a process called Rayleigh scattering, where light encounters tiny molecules "
    "of air and is deflected by them."
)


@pytest.fixture(scope="module")
def imported(
    smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Load, tokenizers.Tokenizer]:
    """The message that loads the model, and its tokenizer."""
    sink = DirectorySink(tmp_path_factory.mktemp("smollm2"))
    model = import_gguf([smollm2_gguf], sink, lambda done, total: None)
    paths = {blob.media_type: (blob.digest, str(sink.path(blob.digest))) for blob in model.blobs}
    _, tokenizer_path = paths.pop(TOKENIZER_MEDIA_TYPE)
    load = Load(
        config_path=str(sink.path(model.config_digest)),
        blob_paths=dict(paths.values()),
        context_tokens=512,
        max_sequences=4,
        debug_checks=True,
    )
    return load, tokenizers.Tokenizer.from_file(tokenizer_path)


@pytest.fixture(scope="module", params=["f32", "fast"])
def serving(
    request: pytest.FixtureRequest, imported: tuple[Load, tokenizers.Tokenizer]
) -> Iterator[tuple[Serving, tokenizers.Tokenizer]]:
    """An engine on each precision."""
    load, tokenizer = imported
    serving = Serving(msgspec.structs.replace(load, precision=request.param))
    yield serving, tokenizer
    serving.close()


def chat(tokenizer: tokenizers.Tokenizer, question: str) -> list[int]:
    """Return the ids of a question in the model's own format."""
    turns = (("system", SYSTEM), ("user", question))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    text += "<|im_start|>assistant\n"
    return tokenizer.encode(text, add_special_tokens=False).ids


def answer(serving: Serving, tokenizer: tokenizers.Tokenizer, question: str, max_tokens: int) -> str:
    """Return the greedy answer to ``question``."""
    request = serving.start(chat(tokenizer, question), max_tokens=max_tokens, stop_ids=[2])
    serving.run()
    return tokenizer.decode(serving.tokens(request), skip_special_tokens=False)


def test_factorial(serving: tuple[Serving, tokenizers.Tokenizer]) -> None:
    text = answer(*serving, "Write a Python function that returns the factorial of n.", 50)
    assert text.startswith(FACTORIAL)


def test_blue_sky(serving: tuple[Serving, tokenizers.Tokenizer]) -> None:
    assert answer(*serving, "Explain in two sentences why the sky is blue.", 40).startswith(BLUE_SKY)


def test_the_capital_of_france_on_the_float_path(imported: tuple[Load, tokenizers.Tokenizer]) -> None:
    load, tokenizer = imported
    serving = Serving(msgspec.structs.replace(load, precision="f32"))
    assert (
        answer(serving, tokenizer, "What is the capital of France?", 20) == "The capital of France is Paris."
    )
    serving.close()


def test_batched_warm_and_cold_texts_are_the_same(serving: tuple[Serving, tokenizers.Tokenizer]) -> None:
    engine, tokenizer = serving
    questions = ["Name three colours.", "What is 2 + 2?", "Write a haiku about rain.", "Who wrote Hamlet?"]
    prompts = [chat(tokenizer, question) for question in questions]
    alone = []
    for number, prompt in enumerate(prompts):
        alone.append(engine.start(prompt, max_tokens=32, stop_ids=[2], cache_salt=f"alone {number}"))
        engine.run()
    cold = [engine.start(prompt, max_tokens=32, stop_ids=[2], cache_salt="batch") for prompt in prompts]
    engine.run()
    warm = [engine.start(prompt, max_tokens=32, stop_ids=[2], cache_salt="batch") for prompt in prompts]
    engine.run()
    assert [engine.finished(request).cached_tokens >= 32 for request in warm] == [True] * 4
    texts = [[engine.tokens(request) for request in requests] for requests in (alone, cold, warm)]
    assert texts[0] == texts[1] == texts[2]
