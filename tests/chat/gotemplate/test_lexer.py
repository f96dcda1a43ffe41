"""Tokens typed by hand."""

import pytest

from ftd.chat.gotemplate import GoTemplateError
from ftd.chat.gotemplate.lexer import ActionPart, TextPart, parts


def tokens(source: str) -> list[tuple[str, str, bool]]:
    (part,) = parts(source)
    assert isinstance(part, ActionPart)
    return [(token.kind, token.text, token.spaced) for token in part.tokens]


def test_kinds() -> None:
    assert tokens("{{$x := .A.B | f (1) . }}") == [
        ("variable", "$x", False),
        (":=", ":=", True),
        ("field", ".A", True),
        ("field", ".B", False),
        ("|", "|", True),
        ("word", "f", True),
        ("(", "(", True),
        ("number", "1", False),
        (")", ")", False),
        (".", ".", True),
    ]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (r'{{"a\n\x41\u00e9\101\"}}"}}', 'a\nAéA"}}'),
        (r"{{`a\n}}`}}", r"a\n}}"),
        ("{{'a'}}", 97),
        (r"{{'\n'}}", 10),
        ("{{0x1F}}", 31),
        ("{{017}}", 15),
        ("{{-3}}", -3),
        ("{{1_000}}", 1000),
        ("{{1.5e2}}", 150.0),
    ],
)
def test_constants(source: str, value: object) -> None:
    (part,) = parts(source)
    assert isinstance(part, ActionPart)
    assert part.tokens[0].value == value


def test_text_lines_and_trimming() -> None:
    found = list(parts("a\n {{- /* c */ -}}\n b\n{{.X}}c"))
    assert [part.text for part in found if isinstance(part, TextPart)] == ["a", "b\n", "c"]
    assert [part.line for part in found if isinstance(part, ActionPart)] == [4]


@pytest.mark.parametrize("source", ["{{ # }}", '{{ "\\q" }}', "{{ ; }}", "{{"])
def test_bad_tokens(source: str) -> None:
    with pytest.raises(GoTemplateError, match="line 1"):
        list(parts(source))
