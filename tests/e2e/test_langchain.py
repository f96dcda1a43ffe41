"""LangChain's Ollama, OpenAI and Anthropic against a live daemon: the standard suite of langchain-tests.

With scripted answers, so that tool calls and structured output are tested whatever a model can do, and with
SmolLM2, whose structured output follows a grammar.
"""

import gc
import json

import pytest
from fake_engine import fake_command
from live_daemon import running_in_thread
from tiny_model import HERMES, add_model, ids_of

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

from ftd.daemon.runner import WORKER_COMMAND

# The clients of the suite are never closed, and some live longer than a test
pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The test .* is marked with:pytest.PytestWarning"),
]

GREETING = "Hello, how are you?"
JOKE = {"setup": "Why did the cat sit on the laptop?", "punchline": "To keep an eye on the mouse."}


def _call(name, /, **arguments):
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _asked(text):
    """Pattern of a prompt whose last message is a user's with this text."""
    return rf"\0user\n[^\0]*{text}[^\0]*\0\n\0assistant\n$"


RULES = [
    (r"\0tool\n[^\0]*\0\n\0assistant\n$", "It is as the tool says."),
    # What the suite asks where a client can choose the tool
    (_asked("Hello!"), _call("magic_function", input=3)),
    (_asked("magic_function_no_args"), _call("magic_function_no_args")),
    (_asked("magic_function"), _call("magic_function", input=3)),
    (_asked("Pirate greeting"), _call("greeting_generator", answer_style="pirate")),
    (_asked("both"), "Both.\n" + _call("a", x=1) + "\n" + _call("b", x=[2, {"y": "z"}])),
    (_asked("San Francisco"), _call("get_weather", location="San Francisco, CA")),
    (_asked("你好"), _call("unicode_customer", customer_name="你好啊集团", description="technology")),
    (_asked("こんにちは"), _call("unicode_customer", customer_name="こんにちは株式会社", description="公司")),
    (r'"name": ?"JokeDict"', _call("JokeDict", **JOKE)),
    (r'"name": ?"Joke"', _call("Joke", **JOKE)),
    (_asked("joke"), json.dumps(JOKE)),
]


@pytest.fixture(scope="module", autouse=True)
def unclosed_clients():
    """Let go of them here, where nobody warns."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def scripted_daemon(tmp_path_factory):
    rules = [(pattern, ids_of(answer)) for pattern, answer in RULES]
    command = fake_command(rules=rules, reply=ids_of(GREETING))
    with running_in_thread(tmp_path_factory.mktemp("scripted"), command, models=()) as daemon:
        for seed, name in enumerate(("tiny", "other")):
            add_model(daemon.store, name, template=HERMES, seed=seed)
        yield daemon


@pytest.fixture(scope="module")
def smol_url(tmp_path_factory, smollm2_gguf):
    """Address of a daemon with SmolLM2 as ``smol``."""
    with running_in_thread(tmp_path_factory.mktemp("smol"), WORKER_COMMAND, models=()) as daemon:
        import ollama

        client = ollama.Client(daemon.url)
        digest = client.create_blob(smollm2_gguf)
        assert client.create(model="smol", files={"m.gguf": digest}).status == "success"
        yield daemon.url


@pytest.fixture
def benchmark():
    """Asked for by a test of the suite that is off without recorded answers."""


@pytest.fixture
def vcr():
    """Like ``benchmark``."""


class _Chat(ChatModelIntegrationTests):
    """What ChatOllama says of itself: it drops tool_choice, and no model here can see or hear."""

    chat_model_class = ChatOllama
    has_tool_choice = False
    supports_json_mode = True


class _Scripted(_Chat):
    supports_model_override = True
    model_override_value = "other"

    @pytest.fixture(autouse=True)
    def _use(self, scripted_daemon):
        self.url = scripted_daemon.url

    @property
    def chat_model_params(self):
        return {"model": "tiny", "base_url": self.url}


class TestScriptedChat(_Scripted):
    pass


class TestScriptedChatByFunctionCalling(_Scripted):
    """Structured output as the arguments of a tool call."""

    @property
    def structured_output_kwargs(self):
        return {"method": "function_calling"}


class _ScriptedElsewhere(_Scripted):
    has_tool_choice = True

    @property
    def settings(self):
        return {"model": "tiny", "api_key": "x", "max_retries": 0}


# The client warns of the schemas of the suite
@pytest.mark.filterwarnings("ignore::UserWarning")
class TestScriptedOpenAI(_ScriptedElsewhere):
    chat_model_class = ChatOpenAI

    @property
    def chat_model_params(self):
        return {**self.settings, "base_url": f"{self.url}/v1", "stream_usage": True}


class TestScriptedOpenAIResponses(TestScriptedOpenAI):
    @property
    def chat_model_params(self):
        return {**self.settings, "base_url": f"{self.url}/v1", "use_responses_api": True}


class TestScriptedAnthropic(_ScriptedElsewhere):
    """There is no JSON mode without a schema in this API."""

    chat_model_class = ChatAnthropic
    supports_json_mode = False
    supports_anthropic_inputs = True

    @property
    def chat_model_params(self):
        return {**self.settings, "base_url": self.url, "max_tokens": 500}


class TestSmolChat(_Chat):
    """SmolLM2: too small to choose tools, or to name the keys of a JSON object without a schema."""

    has_tool_calling = False
    supports_json_mode = False

    @pytest.fixture(autouse=True)
    def _use(self, smol_url):
        self.url = smol_url

    @property
    def chat_model_params(self):
        # Without the penalty it says the same again until it has to stop, in the middle of a string
        greedy = {"temperature": 0, "repeat_penalty": 1.3, "num_predict": 80}
        return {"model": "smol", "base_url": self.url, **greedy}


class _Embeddings(EmbeddingsIntegrationTests):
    embeddings_class = OllamaEmbeddings


class TestScriptedEmbeddings(_Embeddings):
    @pytest.fixture(autouse=True)
    def _use(self, scripted_daemon):
        self.url = scripted_daemon.url

    @property
    def embedding_model_params(self):
        return {"model": "tiny", "base_url": self.url}


class TestSmolEmbeddings(_Embeddings):
    @pytest.fixture(autouse=True)
    def _use(self, smol_url):
        self.url = smol_url

    @property
    def embedding_model_params(self):
        return {"model": "smol", "base_url": self.url}


def test_completion_model(scripted_daemon):
    """OllamaLLM sends ``"format": ""`` and takes the text of ``response``."""
    model = OllamaLLM(model="tiny", base_url=scripted_daemon.url)
    assert model.invoke("hi") == "".join(model.stream("hi")) == GREETING
    assert model.generate(["a", "b"]).generations[1][0].generation_info["done_reason"] == "stop"


def test_only_the_last_chunk_has_counts(scripted_daemon):
    model = ChatOllama(model="tiny", base_url=scripted_daemon.url)
    *chunks, last = model.stream("hi")
    assert not any(chunk.usage_metadata for chunk in chunks[:-1])
    whole = sum([*chunks, last], AIMessageChunk(content=""))
    assert whole.usage_metadata["output_tokens"] == len(GREETING)
    assert whole.response_metadata["done_reason"] == "stop"


def test_two_calls_beside_text(scripted_daemon):
    """TOOL-1: streamed calls do not merge, and arguments keep their types."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in "ab"
    ]
    model = ChatOllama(model="tiny", base_url=scripted_daemon.url).bind_tools(tools)
    answers = [model.invoke("both"), sum(model.stream("both"), AIMessageChunk(content=""))]
    for answer in answers:
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
            ("a", {"x": 1}),
            ("b", {"x": [2, {"y": "z"}]}),
        ]
        assert answer.content.strip() == "Both." and not answer.invalid_tool_calls


def test_model_is_looked_up_at_start(scripted_daemon):
    ChatOllama(model="tiny", base_url=scripted_daemon.url, validate_model_on_init=True)
    with pytest.raises(ValueError, match=r"nope.*not found.*tiny:latest"):
        ChatOllama(model="nope", base_url=scripted_daemon.url, validate_model_on_init=True)
