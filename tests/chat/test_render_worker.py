"""The worker's answers, asked for in this process."""

from typing import Any

import pytest

from ftd.chat.render_worker import answer


def render(
    source: str, kind: str = "jinja", max_chars: int = 100, seal: str = "", **variables: Any
) -> dict[str, Any]:
    request = {"op": "render", "kind": kind, "source": source, "variables": variables, "seal": seal}
    return answer(request, max_chars)


def test_text() -> None:
    assert render("a{{ x }}", x=1) == {"status": "ok", "text": "a1"}
    assert render("{{ .Prompt }}", "go", messages=[{"role": "user", "content": "p"}]) == {
        "status": "ok",
        "text": "p",
    }


@pytest.mark.parametrize(
    ("source", "kind", "status"),
    [
        ("{{ raise_exception('no') }}", "jinja", "refused"),
        ("{% if %}", "jinja", "invalid"),
        ("{{ a.b.c }}", "jinja", "failed"),
        ("{{ ''.__class__.mro() }}", "jinja", "failed"),
        ("{{ 'x' * 101 }}", "jinja", "limit"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "jinja", "failed"),
        ("{{ Prompt }}", "go", "invalid"),
        ("{{ len 3 }}", "go", "failed"),
    ],
)
def test_faults(source: str, kind: str, status: str) -> None:
    reply = render(source, kind)
    assert reply["status"] == status
    assert reply["text"]


def test_escaped_seals_are_put_back() -> None:
    assert render("{{ [x] }}", x="a\ufdd0", seal="\ufdd0") == {"status": "ok", "text": "['a\ufdd0']"}


def test_literals() -> None:
    assert answer({"op": "literals", "kind": "jinja", "source": "a{{ 'b' }}"}) == {
        "status": "ok",
        "literals": ["a", "b"],
    }
    assert answer({"op": "literals", "kind": "go", "source": "a{{ .X }}"}) == {
        "status": "ok",
        "literals": ["a"],
    }
    assert answer({"op": "literals", "kind": "go", "source": "{{ X }}"})["status"] == "invalid"


def test_long_error_texts_are_cut() -> None:
    assert len(render("{{ raise_exception('x' * 90000) }}")["text"]) == 1000
