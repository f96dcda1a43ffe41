"""Conversations of each kind, a tool, and how transformers renders them with a template."""

from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template
from vocabularies import byte_level

from ftd.chat.renderer import Renderer
from ftd.chat.templates import ChatTemplate

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a <city> & more",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "ü"}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln"}},
}
PLAIN = [{"role": "user", "content": "Hi, <b>you</b> & 'me'\n"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    *PLAIN,
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "東京?"},
]
CALLS = [
    {"role": "system", "content": "Be brief."},
    *PLAIN,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "call00000"},
]
VOCABULARY = byte_level().to_str().encode()
BOS, EOS = "<s>", "</s>"


def theirs(
    source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, **extra: Any
) -> str:
    """Render with transformers."""
    texts, _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=True,
        bos_token=BOS,
        eos_token=EOS,
        **extra,
    )
    return str(texts[0])


def template(source: str, renderer: Renderer, control: frozenset[str] = frozenset()) -> ChatTemplate:
    return ChatTemplate(source, renderer, bos_token=BOS, eos_token=EOS, control=control)
