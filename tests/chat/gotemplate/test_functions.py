"""Results typed by hand from the documentation of Go's fmt and text/template packages."""

import re
from typing import Any

import pytest

from ftd.chat.gotemplate import GoTemplateError
from ftd.chat.gotemplate.functions import FUNCTIONS, typescript_type
from ftd.chat.gotemplate.values import Struct, TypeList


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("print", (1, 2, "a", 3), "1 2a3"),
        ("println", ("a", 1), "a 1\n"),
        ("printf", ("%s|%5d|%-4s|%v|%%", "x", 3, "a", [1]), "x|    3|a   |[1]|%"),
        (
            "printf",
            ("%q %05d %x %t %.2f %c", 'a"\n', 7, "hi", True, 1.5, 65),
            '"a\\"\\n" 00007 6869 true 1.50 A',
        ),
        ("printf", ("%d %s", 1), "1 %!s(MISSING)"),
        ("printf", ("a", 1), "a%!(EXTRA int=1)"),
        ("printf", ("%d", "x"), "%!d(string=x)"),
        ("printf", ("%v %v", None, 1e21), "<nil> 1e+21"),
        ("len", ("é",), 2),
        ("index", ({"a": [1, 2]}, "a", 1), 2),
        ("index", ("abc", 1), 98),
        ("slice", (["a", "b", "c"], 1), ["b", "c"]),
        ("slice", ("abc", 0, 2), "ab"),
        ("html", ("<a href='x'>&\"",), "&lt;a href=&#39;x&#39;&gt;&amp;&#34;"),
        ("js", ("a'<b>",), "a\\'\\u003Cb\\u003E"),
        ("urlquery", ("a b&ü",), "a+b%26%C3%BC"),
        ("json", ({"b": "<", "a": 1.0},), '{"a":1,"b":"\\u003c"}'),
    ],
)
def test_results(name: str, args: tuple[Any, ...], result: Any) -> None:
    assert FUNCTIONS[name](*args) == result


def test_dates() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", FUNCTIONS["currentDate"]("2006-01-02"))
    assert FUNCTIONS["yesterdayDate"]() < FUNCTIONS["currentDate"]()


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (["string"], "string"),
        (["integer"], "number"),
        (["array", "null"], "any[] | null"),
        (["object"], "Record<string, any>"),
        (["odd"], "any"),
        ([], "any"),
    ],
)
def test_typescript_types(types: list[str], text: str) -> None:
    assert typescript_type(Struct({"Type": TypeList(types)})) == text


def test_typescript_union() -> None:
    options = [Struct({"Type": TypeList(["string"])}), Struct({"Type": TypeList(["number"])})]
    assert typescript_type(Struct({"AnyOf": options})) == "string | number"


def test_a_huge_width_is_bounded() -> None:
    assert len(FUNCTIONS["printf"]("%999999999d", 1)) == 1000


@pytest.mark.parametrize(
    ("name", "args"), [("call", ("f",)), ("printf", (1,)), ("index", (1, 2)), ("slice", (1,))]
)
def test_failures(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(GoTemplateError):
        FUNCTIONS[name](*args)
