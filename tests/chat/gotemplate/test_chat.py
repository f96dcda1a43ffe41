"""Checked against the rendering facts of the reference page (appendix A.4 and section 9.2)."""

from typing import Any

import pytest

from ftd.chat.gotemplate import GoTemplateError, chat

T1 = (
    "{{ if .System }}S:{{ .System }};{{ end }}{{ if .Prompt }}U:{{ .Prompt }};{{ end }}"
    "{{ if .Response }}A:{{ .Response }}{{ end }}"
)
T2 = "{{ if .Suffix }}[P]{{ .Prompt }}[S]{{ .Suffix }}[M]{{ else }}{{ .Prompt }}{{ end }}"
T3 = "{{ range .Messages }}{{ .Role }}={{ .Content }}|{{ end }}"
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"b": {"type": "string", "title": "x"}, "a": {"type": ["integer", "null"]}},
            "required": ["b"],
        },
    },
}
TOOL_PARAMETERS = (
    '{"type":"object","required":["b"],"properties":{"a":{"type":["integer","null"]},"b":{"type":"string"}}}'
)
TOOL_FUNCTION = f'{{"name":"f","description":"","parameters":{TOOL_PARAMETERS}}}'


def render(source: str, *turns: tuple[str, str], **values: Any) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    return "".join(chat.pieces(source, {"messages": messages, **values}))


@pytest.mark.parametrize(
    ("source", "turns", "prompt"),
    [
        (T1, [("user", "hi")], "U:hi;"),
        (T1, [("system", "sys"), ("user", "hi")], "S:sys;U:hi;"),
        ("{{ .System }}/{{ .Prompt }}", [("system", "o2"), ("user", "hi")], "o2/hi"),
        (T2, [("user", "a(")], "a("),
        (T3, [("system", "sys"), ("user", "u1")], "system=sys|user=u1|"),
        (
            T3,
            [("system", "sys"), ("user", "u1"), ("assistant", "a1"), ("system", "x"), ("user", "u2")],
            "system=sys|user=u1|assistant=a1|system=x|user=u2|",
        ),
        (T1, [("user", "u1"), ("assistant", "a1"), ("user", "u2")], "U:u1;A:a1U:u2;"),
        (T1, [("user", "u1"), ("assistant", "a1")], "U:u1;A:a1"),
        (T1, [("user", "u1"), ("user", "u2")], "U:u1\n\nu2;"),
        ("{{ .Prompt }}", [("user", "u1"), ("assistant", "a1"), ("user", "u2")], "u1a1u2"),
        (
            "{{ .Prompt }}>{{ .Response }}<END",
            [("user", "u1"), ("assistant", "a"), ("user", "u2")],
            "u1>a<ENDu2>",
        ),
        ("{{ if .System }}{{ .System }}{{ end }}{{ .Response }}never", [("user", "u")], ""),
    ],
)
def test_prompts(source: str, turns: list[tuple[str, str]], prompt: str) -> None:
    assert render(source, *turns) == prompt


def test_suffix_mode_knows_neither_system_nor_messages() -> None:
    assert render(T2, ("system", "sys"), ("user", "x"), prompt="a(", suffix="b)") == "[P]a([S]b)[M]"


def test_system_is_all_system_messages() -> None:
    source = "{{ .System }}|{{ range .Messages }}{{ .Role }} {{ end }}"
    assert render(source, ("system", "a"), ("user", "u"), ("system", "b")) == "a\n\nb|system user system "


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ .Tools }}{{ $.Messages | len }}", f'[{{"type":"function","function":{TOOL_FUNCTION}}}]1'),
        ("{{ range .Tools }}{{ .Function }}{{ end }}{{ $.Messages | len }}", f"{TOOL_FUNCTION}1"),
        (
            "{{ range .Tools }}{{ .Function.Parameters }}{{ end }}{{ $.Messages | len }}",
            f"{TOOL_PARAMETERS}1",
        ),
        (
            "{{ range .Tools }}{{ range $k, $v := .Function.Parameters.Properties }}{{ $k }}:{{ $v.Type }}:"
            "{{ toTypeScriptType $v }};{{ end }}{{ end }}{{ $.Messages | len }}",
            "a:[integer null]:number | null;b:string:string;1",
        ),
        ("{{ json (index .Tools 0).Function.Name }}{{ $.Messages | len }}", '"f"1'),
    ],
)
def test_tools_print_as_json(source: str, text: str) -> None:
    assert render(source, ("user", "u"), tools=[TOOL]) == text


def test_tool_calls_and_results() -> None:
    source = (
        "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Index }}:{{ .Function.Name }}"
        "{{ .Function.Arguments }}{{ range $k, $v := .Function.Arguments }}{{ $k }}={{ $v }},{{ end }}"
        "{{ end }}"
        '{{ if eq .Role "tool" }}[{{ .ToolName }} {{ .ToolCallID }} {{ .Content }}]{{ end }}{{ end }}'
    )
    call = {"id": "c1", "function": {"name": "f", "arguments": {"b": "<x>", "a": 1}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "ok", "name": "f", "tool_call_id": "c1"},
    ]
    text = "".join(chat.pieces(source, {"messages": messages}))
    assert text == '0:f{"a":1,"b":"\\u003cx\\u003e"}a=1,b=<x>,[f c1 ok]'


@pytest.mark.parametrize(
    ("think", "text"),
    [(None, "false||false"), (True, "true|medium|true"), (False, "false||true"), ("high", "true|high|true")],
)
def test_think(think: bool | str | None, text: str) -> None:
    source = "{{ .Think }}|{{ .ThinkLevel }}|{{ .IsThinkSet }}{{ if .Messages }}{{ end }}"
    assert render(source, ("user", "u"), think=think) == text


def test_a_failing_template_says_where() -> None:
    with pytest.raises(GoTemplateError, match="line 2: ") as caught:
        render('{{ .Prompt }}\n{{ index .Messages "x" }}', ("user", "u"))
    assert caught.value.status == "failed"
