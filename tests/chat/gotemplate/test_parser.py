"""Parse errors, each checked against the rule of text/template that it breaks."""

import pytest

from ftd.chat.gotemplate import GoTemplateError, parse
from ftd.chat.gotemplate import nodes as n


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ Prompt }}", 'line 1: function "Prompt" not defined'),
        ("a\n{{ .Prompt", "line 2: unclosed action"),
        ("{{ if .X }}", "not closed"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("{{ if .X }}{{ else }}{{ else }}{{ end }}", "unexpected {{else}}"),
        ("{{ .A | 3 }}", "non executable command"),
        ("{{ $x }}", 'undefined variable "$x"'),
        ("{{ $x = 1 }}", 'undefined variable "$x"'),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", 'undefined variable "$x"'),
        ("{{ }}", "missing value for command"),
        ("{{ . | }}", "missing value for command"),
        ("{{ break }}", "outside {{range}}"),
        ("{{ (.A }}", "unclosed left paren"),
        ("{{ .A) }}", "unexpected"),
        ('{{ "a }}', "unexpected"),
        ("{{ 'ab' }}", "malformed character constant"),
        ("{{ 99999999999999999999 }}", "bad number syntax"),
        ("{{/* a }}", "unclosed comment"),
        ("{{/* a */ .B }}", "comment ends before closing delimiter"),
        ("{{ template }}", "unexpected end of action"),
        ("{{ template x }}", "expected a quoted name"),
        ('{{ define "a" }}', "not closed"),
        ("{{ 1 2 }}", "can't give argument to non-function"),
        ("{{ .A.B. }}", "unexpected"),
        ("{{ if .A" + " }}{{ if .A" * 200 + " }}", "nested more than"),
        ("{{ " + "(" * 200 + " }}", "nested more than"),
    ],
)
def test_errors(source: str, message: str) -> None:
    with pytest.raises(GoTemplateError) as caught:
        parse(source)
    assert message in str(caught.value)
    assert caught.value.status == "invalid"


@pytest.mark.parametrize(
    "source",
    [
        "{{ if .A }}{{ else if .B }}{{ else }}{{ end }}",
        "{{ range $i, $v := .A }}{{ $i }}{{ $v }}{{ break }}{{ else }}{{ end }}",
        "{{ with $x := .A }}{{ $x.B.C }}{{ else with .D }}{{ . }}{{ end }}",
        '{{ define "t" }}{{ . }}{{ end }}{{ template "t" .A }}{{ block "u" . }}x{{ end }}',
        '{{- /* c */ -}} {{ printf "%s" (len .A | print) }} {{ `raw }}` }}',
        "{{ (index .A 0).B }} {{ .A.B.C }} {{ $.X }} {{ 0x1F }} {{ 1.5e3 }} {{ 'a' }} {{ nil | eq nil }}",
    ],
)
def test_what_go_takes_is_taken(source: str) -> None:
    assert parse(source).root.nodes


def test_text_between_trimmed_actions() -> None:
    tree = parse("a \n{{- .B -}} \n c")
    assert [node.text for node in tree.root.nodes if isinstance(node, n.Text)] == ["a", "c"]


def test_a_minus_without_a_blank_is_a_sign() -> None:
    assert parse("a {{-3}}").root.nodes[0] == n.Text("a ", line=1)


def test_a_very_long_template_is_refused() -> None:
    with pytest.raises(GoTemplateError, match="longer than"):
        parse("x" * (1 << 16) + "x")
