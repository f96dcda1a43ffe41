"""Results typed by hand from the documentation of text/template."""

from typing import Any

import pytest

from ftd.chat.gotemplate import GoTemplateError, parse
from ftd.chat.gotemplate.evaluator import Evaluator

DATA: dict[str, Any] = {
    "A": {"B": {"C": "deep"}, "x": 1},
    "L": ["a", "b", "c"],
    "E": [],
    "N": 3,
    "F": 1.0,
    "S": "text",
    "T": True,
    "Z": "",
    "Nil": None,
}


def run(source: str) -> str:
    return Evaluator(parse(source)).run(DATA)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ .A.B.C }} {{ $.A.B.C }} {{ (.A).B.C }}", "deep deep deep"),
        ("{{ .Nope }} {{ .Nil }}", "<no value> <no value>"),
        ("{{ .L }} {{ .A.B }} {{ .N }} {{ .F }} {{ .T }}", "[a b c] map[C:deep] 3 1 true"),
        ("{{ if .Z }}x{{ else if .E }}y{{ else if .T }}z{{ else }}w{{ end }}", "z"),
        ("{{ with .A.B }}{{ .C }}{{ end }}{{ with .Z }}x{{ else }}no{{ end }}", "deepno"),
        ("{{ with .Z }}x{{ else with .S }}{{ . }}{{ end }}", "text"),
        ("{{ range .L }}{{ . }},{{ end }}{{ range .E }}x{{ else }}none{{ end }}", "a,b,c,none"),
        (
            "{{ range $i, $v := .L }}{{ $i }}{{ $v }}{{ end }}{{ range $v := .L }}{{ $v }}{{ end }}",
            "0a1b2cabc",
        ),
        ("{{ range $k, $v := .A }}{{ $k }};{{ end }}{{ range 3 }}{{ . }}{{ end }}", "B;x;012"),
        (
            "{{ range $i, $_ := .L }}{{ if eq $i 0 }}{{ continue }}{{ end }}"
            "{{ if eq $i 2 }}{{ break }}{{ end }}{{ $i }}{{ end }}",
            "1",
        ),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", "1"),
        ('{{ define "t" }}<{{ . }}>{{ end }}{{ template "t" .S }}{{ template "t" }}', "<text><<no value>>"),
        ('{{ block "b" .N }}[{{ . }}]{{ end }}', "[3]"),
        ("{{ and .T .Z }}|{{ and .T .S }}|{{ or .Z .S }}|{{ or .Z 0 }}|{{ not .Z }}", "|text|text|0|true"),
        ("{{ and .Z (index .L 99) }}{{ or .T (index .L 99) }}", "true"),
        ('{{ .S | printf "%s-%s" "a" | len }}', "6"),
        (
            "{{ eq .N 1 2 3 }} {{ ne .S .Z }} {{ lt 1 2 }} {{ le 2 2 }} {{ gt .N 5 }} {{ ge 5 5 }}",
            "true true true true false true",
        ),
    ],
)
def test_results(source: str, text: str) -> None:
    assert run(source) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ .S.X }}", "can't evaluate field X in type string"),
        ("{{ .Nil.X }}", "nil pointer"),
        ('{{ eq .N "3" }}', "incompatible types for comparison"),
        ("{{ eq .N .F }}", "incompatible types for comparison"),
        ("{{ lt .T .T }}", "invalid type for comparison"),
        ("{{ eq .L .L }}", "non-comparable"),
        ("{{ range .S }}{{ end }}", "can't iterate over string"),
        ("{{ len 3 }}", "len of type int"),
        ("{{ index .L 3 }}", "index out of range: 3"),
        ("{{ slice .L 2 1 }}", "invalid slice index"),
        ("{{ .S 1 }}", "cannot take arguments"),
        ("{{ len }}", "wrong number of arguments"),
        ('{{ template "nope" }}', 'template "nope" not defined'),
        ('{{ define "r" }}{{ template "r" }}{{ end }}{{ template "r" }}', "call each other"),
    ],
)
def test_failures(source: str, message: str) -> None:
    with pytest.raises(GoTemplateError) as caught:
        run(source)
    assert message in str(caught.value)
    assert caught.value.status == "failed"


def test_a_failed_run_leaves_the_evaluator_usable() -> None:
    evaluator = Evaluator(parse("{{ if .X }}{{ len 3 }}{{ end }}ok"))
    with pytest.raises(GoTemplateError):
        evaluator.run({"X": True})
    assert evaluator.run({"X": False}) == "ok"
