"""Checked against section 9.3, 9.4 and vectors A.7 of the reference page."""

import pytest

from ftd.chat.gotemplate import discovery, parse

LOOP = "{{{{ range $i, $m := .Messages }}}}{{{{ $last := eq $i 1 }}}}{}{{{{ end }}}}"
THINK = "{{ if and $last .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        (LOOP.format(THINK), ("<think>", "</think>")),
        (LOOP.format(f"Some text before {THINK} Some text after"), ("<think>", "</think>")),
        (LOOP.format("{{ if .Thinking }}\n[T] {{ .Thinking }}\n[/T]\n{{ end }}"), ("[T]", "[/T]")),
        (THINK.replace("$last ", ""), None),
        ("{{ range .Other }}<think>{{ .Thinking }}</think>{{ end }}", None),
        (LOOP.format("{{ range .Parts }}<think>{{ .Thinking }}</think>{{ end }}"), None),
        ("{{ .Prompt }}", None),
    ],
)
def test_thinking_tags(source: str, tags: tuple[str, str] | None) -> None:
    assert discovery.thinking_tags(parse(source)) == tags


@pytest.mark.parametrize(
    ("source", "tag"),
    [
        ('{{ range .Messages }}{{ if .ToolCalls }}<tc>\n{"name": "x"}{{ end }}{{ end }}', "<tc>"),
        ("{{ if .ToolCalls }}[CALLS] [{{ range .ToolCalls }}{{ end }}]{{ end }}", "[CALLS] ["),
        ('{{ if .ToolCalls }}{{ range .ToolCalls }}{"name": 1}{{ end }}{{ end }}', "{"),
        ("{{ if .X }}{{ else if .ToolCalls }} \n <|t|> {{ end }}", "<|t|>"),
        ("{{ .Prompt }}", "{"),
    ],
)
def test_tool_call_tag(source: str, tag: str) -> None:
    assert discovery.tool_call_tag(parse(source)) == tag


def test_literals_are_what_the_template_writes() -> None:
    tree = parse('a{{ if eq .X "b" }}{{ printf "<%s" .Y }}{{ end }}{{ define "t" }}c{{ end }}')
    assert discovery.literals(tree) == ["<%s", "a", "b", "c"]


def test_variables_of_nested_templates_count() -> None:
    tree = parse('{{ define "x" }}{{ .Tools }}{{ end }}{{ template "x" . }}{{ $.Suffix }}')
    assert {"tools", "suffix"} <= discovery.variables(tree)
    assert discovery.capabilities(tree) == ("tools", "insert")
