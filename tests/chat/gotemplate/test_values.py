"""Text forms typed by hand from what Go's %v prints."""

from typing import Any

import pytest

from ftd.chat.gotemplate.values import MISSING, JsonList, JsonMap, Struct, TypeList, kind, to_text, truth


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (MISSING, "<no value>"),
        (None, "<no value>"),
        ([None, True], "[<nil> true]"),
        ({"b": 1, "a": "x"}, "map[a:x b:1]"),
        (1.5, "1.5"),
        (3.0, "3"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (0.00001, "1e-05"),
        (1.25e-7, "1.25e-07"),
        (float("inf"), "+Inf"),
        (JsonMap({"b": "<", "a": 1}), '{"a":1,"b":"\\u003c"}'),
        (JsonList([1, "a"]), '[1,"a"]'),
        (TypeList(["string"]), "string"),
        (TypeList(["a", "b"]), "[a b]"),
        (Struct({"X": 1}, {"z": 1, "a": TypeList(["t"])}), '{"z":1,"a":"t"}'),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize("value", [MISSING, None, 0, 0.0, "", [], {}, False, JsonMap()])
def test_false_values(value: Any) -> None:
    assert not truth(value)


@pytest.mark.parametrize("value", [1, "x", [0], {"a": 0}, True, Struct({})])
def test_true_values(value: Any) -> None:
    assert truth(value)


def test_kinds() -> None:
    assert [kind(value) for value in (True, 1, 1.0, "", [], {}, Struct({}), None)] == [
        *("bool", "int", "float", "string", "slice", "map", "struct", "nil")
    ]
