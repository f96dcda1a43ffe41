"""The fields that all APIs share: what they accept, and the words for what they do not."""

import pytest

from ftd.api import request
from ftd.api.jsontext import Fields
from ftd.api.request import CompletionRequest, Delta, Done, Logprob, ToolCall
from ftd.errors import InvalidOption, InvalidRequest, Unsupported


@pytest.mark.parametrize("value", [None, True, False, "high", "medium", "low", "max"])
def test_think_is_a_truth_or_an_effort(value):
    assert request.parse_think(value) is value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("none", 'invalid think value: "none" (must be "high", "medium", "low", "max", true, or false)'),
        ("HIGH", 'invalid think value: "HIGH"'),
        ("", 'invalid think value: ""'),
        ("x" * 500, f'invalid think value: "{"x" * 50}" (must'),
        (1, 'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'),
        ([], "think must be a boolean or string"),
    ],
)
def test_other_thoughts_are_refused(value, text):
    with pytest.raises(InvalidRequest) as caught:
        request.parse_think(value)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, -1),
        ({"logprobs": False, "top_logprobs": 5}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": True, "top_logprobs": 3.0}, 3),
    ],
)
def test_logprobs(fields, count):
    assert request.parse_logprobs(Fields(fields)) == count


@pytest.mark.parametrize("top", [-1, 21, 1e300, 2**70])
def test_too_many_logprobs_are_refused_even_if_none_are_wanted(top):
    with pytest.raises(InvalidRequest, match="top_logprobs must be between 0 and 20"):
        request.parse_logprobs(Fields({"top_logprobs": top}))


@pytest.mark.parametrize(
    "fields", [{"logprobs": 1}, {"top_logprobs": "3"}, {"top_logprobs": 2.5}, {"top_logprobs": True}]
)
def test_logprobs_of_the_wrong_type(fields):
    with pytest.raises(InvalidRequest, match="cannot use"):
        request.parse_logprobs(Fields(fields))


@pytest.mark.parametrize(
    ("value", "nanoseconds"), [(None, None), (0, 0), (5, 5 * 10**9), ("10m", 600 * 10**9), (0.5, 5 * 10**8)]
)
def test_keep_alive(value, nanoseconds):
    assert request.parse_keep_alive(Fields({"keep_alive": value})) == nanoseconds


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, None), ("", None), ("json", "json"), ({}, {}), ({"type": "object"}, {"type": "object"})],
)
def test_formats(value, found):
    assert request.parse_format(value) == found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("xml", '"xml"'),
        (0, "0"),
        (False, "false"),
        ([{}], "[{}]"),
        ("é" * 99, '"' + "\\u00e9" * 16 + "\\u0"),
    ],
)
def test_other_formats_are_refused(value, shown):
    with pytest.raises(InvalidOption) as caught:
        request.parse_format(value)
    assert caught.value.message == f'invalid format: {shown}; expected "json" or a valid JSON Schema object'


def test_a_schema_must_be_an_object():
    assert request.parse_schema(Fields({"schema": {"a": 1}})) == {"a": 1}
    for value in (None, "json", [1]):
        with pytest.raises(InvalidRequest, match=r"field json_schema\.schema: it must be object"):
            request.parse_schema(Fields({"schema": value}, "json_schema."))


def test_pictures_are_refused_by_name():
    request.refuse_images([], "m")
    with pytest.raises(Unsupported, match='"m" does not support images'):
        request.refuse_images([b""], "m")


@pytest.mark.parametrize(
    ("fields", "is_chat", "is_empty"),
    [
        ({}, False, True),
        ({"prompt": "x"}, False, False),
        ({"messages": []}, True, True),
        ({"messages": [], "prompt": "x"}, True, True),
        ({"messages": [{"role": "user"}]}, True, False),
        ({"suffix": "x", "system": "y"}, False, True),
    ],
)
def test_what_only_loads_a_model(fields, is_chat, is_empty):
    wanted = CompletionRequest(model="m", **fields)
    assert (wanted.is_chat, wanted.is_empty) == (is_chat, is_empty)


def test_a_delta_is_empty_when_a_client_would_learn_nothing():
    assert Delta().is_empty
    call = ToolCall("id", 0, "f", {})
    for fields in (
        {"content": " "},
        {"thinking": "x"},
        {"tool_calls": [call]},
        {"logprobs": [Logprob("", b"", 0.0)]},
    ):
        assert not Delta(**fields).is_empty


def test_only_what_was_cut_is_told():
    assert Done(reason="stop").cuts == {}
    assert Done(reason="stop", truncated_messages=2, shifted_tokens=1).cuts == {
        "truncated_messages": 2,
        "shifted_tokens": 1,
    }
    assert Done(reason="stop", truncated_tokens=7).cuts == {"truncated_tokens": 7}
