"""What chat templates count on, each result typed by hand from the behaviour that transformers documents."""

import re

import jinja2
import pytest

from ftd.chat import jinja_environment as j


def render(source: str, **variables: object) -> str:
    return "".join(j.pieces(source, variables))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("a{% generation %}b{{ x }}{% endgeneration %}c", "abxc"),
        ("{{ {'b': '<ü>', 'a': [1, none]} | tojson }}", '{"b": "<ü>", "a": [1, null]}'),
        ("{{ {'b': 'ü', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": 1, "b": "\\u00fc"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ [1, 2] | map('string') | tojson }}", '["1", "2"]'),
        (
            "{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
            "4",
        ),
        ("{{ undefined_name }}{{ undefined_name is defined }}", "False"),
        ("{{ x.split('-')[0] if x is string else 1 }}", "x"),
    ],
)
def test_results(source: str, text: str) -> None:
    assert render(source, x="x") == text


def test_raise_exception_is_the_templates_own_error() -> None:
    with pytest.raises(j.Refused, match="no system role"):
        render("{{ raise_exception('no system role') }}")


def test_strftime_now() -> None:
    assert re.fullmatch(r"\d\d [A-Z][a-z]+ \d{4}", render("{{ strftime_now('%d %B %Y') }}"))


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ [].append(1) }}",
        "{{ ''.__class__.mro() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        render(source)


def test_literals() -> None:
    assert j.literals("a{{ '<b>' + x }}{# c #}{% if x == 'd' %}e{% endif %}") == ["<b>", "a", "d", "e"]


def test_compiled_templates_are_kept() -> None:
    assert j.compiled("{{ x }}") is j.compiled("{{ x }}")
