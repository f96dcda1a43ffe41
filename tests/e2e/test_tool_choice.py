"""Calls that SmolLM2 is made to write, through each API's own SDK: the choice and the schemas are kept."""

import json

import anthropic
import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TEMPLATE = (
    "{{ if .Tools }}<|im_start|>system\n{{ range .Tools }}{{ . }}\n{{ end }}<|im_end|>\n{{ end }}"
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}"
    '{{ range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", '
    '"arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}'
    "<|im_end|>\n{{ end }}<|im_start|>assistant\n"
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
PING = {"name": "ping", "description": "Say hello", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, PING)]
USER = [{"role": "user", "content": "What is the weather in Paris, in celsius, for 20 days?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(smol_daemon):
    """Where a SmolLM2 with a template for tools is served, as ``tooly``."""
    await smol_daemon.json(
        "/api/create", {"model": "tooly", "from": "smol", "template": TEMPLATE, "stream": False}
    )
    shown = await smol_daemon.json("/api/show", {"model": "tooly"})
    assert "tools" in shown["capabilities"]
    return smol_daemon.url


def check(arguments):
    """What a validator of the schema would check."""
    assert arguments.keys() == {"city", "unit", "days"}
    assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 30
    assert arguments["unit"] == "kelvin" and type(arguments["days"]) is int and 1 <= arguments["days"] <= 9


async def test_tool_6_a_named_tool_is_called_with_arguments_of_its_schema(url):
    """TOOL-6: ten runs, the user asks for what the enum forbids."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        for seed in range(10):
            done = await client.chat.completions.create(
                model="tooly",
                messages=USER,
                tools=TOOLS,
                tool_choice={"type": "function", "function": {"name": "get_weather"}},
                seed=seed,
                temperature=1.0,
            )
            (choice,) = done.choices
            (call,) = choice.message.tool_calls
            assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
            assert not choice.message.content
            check(json.loads(call.function.arguments))


async def test_required_and_parallel(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        body = {"model": "tooly", "messages": USER, "tools": TOOLS, "tool_choice": "required"}
        for seed in range(3):
            done = await client.chat.completions.create(**body, seed=seed, max_tokens=300)
            calls = done.choices[0].message.tool_calls
            assert calls and {call.function.name for call in calls} <= {"get_weather", "ping"}
            one = await client.chat.completions.create(**body, seed=seed, parallel_tool_calls=False)
            assert len(one.choices[0].message.tool_calls) == 1
        whole = await client.chat.completions.create(**body, temperature=0, parallel_tool_calls=False)
        async with client.chat.completions.stream(**body, temperature=0, parallel_tool_calls=False) as stream:
            streamed = await stream.get_final_completion()
        assert (
            streamed.choices[0].message.tool_calls[0].function.arguments
            == whole.choices[0].message.tool_calls[0].function.arguments
        )
        response = await client.responses.create(
            model="tooly",
            input="Weather in Rome?",
            tools=[{"type": "function", "strict": True, **WEATHER}],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (item,) = response.output
        assert item.type == "function_call" and response.parallel_tool_calls is False
        check(json.loads(item.arguments))


async def test_strict_tools_are_bound_only_where_they_are_called(url):
    """Whether the model calls or talks is its own choice; when it calls, the arguments are right."""
    strict = [{"type": "function", "function": WEATHER | {"strict": True}}]
    start = [*USER, {"role": "assistant", "content": "<tool_call>"}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        for seed in range(4):
            done = await client.chat.completions.create(
                model="tooly", messages=USER, tools=strict, seed=seed, max_tokens=200
            )
            for call in done.choices[0].message.tool_calls or ():
                check(json.loads(call.function.arguments))
        said = await client.chat.completions.create(
            model="tooly", messages=start[:1], tools=strict, tool_choice="none", max_tokens=20
        )
        assert said.choices[0].message.content and not said.choices[0].message.tool_calls


async def test_anthropics_choices(url):
    tools = [
        {"name": "get_weather", "description": "Weather", "input_schema": PARAMETERS},
        {"name": "ping", "description": "hello", "input_schema": PING["parameters"]},
    ]
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
        body = {"model": "tooly", "max_tokens": 300, "messages": USER, "tools": tools}
        for seed in range(3):
            done = await client.messages.create(
                **body,
                tool_choice={"type": "tool", "name": "get_weather"},
                extra_body={"options": {"seed": seed, "temperature": 1.0}},
            )
            (block,) = done.content
            assert (done.stop_reason, block.type) == ("tool_use", "tool_use")
            check(block.input)
        done = await client.messages.create(
            **body, tool_choice={"type": "any", "disable_parallel_tool_use": True}
        )
        assert [block.type for block in done.content] == ["tool_use"]
        async with client.messages.stream(**body, tool_choice={"type": "any"}) as stream:
            message = await stream.get_final_message()
        # A small model calls on and on; the call that the limit cuts is no call
        kinds = [block.type for block in message.content]
        assert kinds[0] == "tool_use" and set(kinds[:-1]) <= {"tool_use"}
        assert kinds[-1] == "tool_use" or message.stop_reason == "max_tokens"
        done = await client.messages.create(**body | {"max_tokens": 20}, tool_choice={"type": "none"})
        assert [block.type for block in done.content] == ["text"]


async def test_ollamas_chat_takes_the_choice_too(smol_daemon, url):
    body = {"model": "tooly", "messages": USER, "tools": TOOLS, "tool_choice": "required", "stream": False}
    answer = await smol_daemon.json("/api/chat", body | {"parallel_tool_calls": False})
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] in ("get_weather", "ping") and answer["message"]["content"] == ""
