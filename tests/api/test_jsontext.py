"""JSON on the wire against Python's own parser and the rules clients rely on."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.api import jsontext
from ftd.api.jsontext import Fields, parse_body
from ftd.errors import InvalidRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_encoded_text_is_ascii_without_line_ends_and_parses_back(value):
    data = jsontext.encode(value)
    assert json.loads(data) == value
    assert data.decode().splitlines() in ([data.decode()], [])
    assert not set("<>&\x7f\x85\u2028\u2029") & set(data.decode()) - {"\x7f"}


def test_separators_and_markup_are_escaped_to_the_letter():
    assert jsontext.encode({"a": "<&>\x85\u2028\u2029é"}) == (
        b'{"a":"\\u003c\\u0026\\u003e\\u0085\\u2028\\u2029\\u00e9"}'
    )


def test_not_a_number_is_never_written():
    with pytest.raises(ValueError, match="Out of range"):
        jsontext.encode(float("nan"))


@pytest.mark.parametrize("body", [b"", b"  \n\t "])
def test_empty_body(body):
    with pytest.raises(InvalidRequest, match=r"^missing request body$"):
        parse_body(body)
    with pytest.raises(InvalidRequest, match=r"^EOF$"):
        parse_body(body, "EOF")


def test_first_value_counts_and_the_rest_is_ignored():
    assert parse_body(b' {"a":1} {"a":2} garbage').values == {"a": 1}
    assert parse_body(b'\xef\xbb\xbf{"a":1}').values == {"a": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "invalid JSON"),
        (b'{"a":}', "invalid JSON"),
        (b'{"a": 1e400}', "invalid JSON: number is too large: 1e400"),
        (b'{"a": [-1.5E+999]}', "invalid JSON: number is too large: -1.5E+999"),
        (b'{"a": ' + b"9" * 400 + b".0}", "invalid JSON: number is too large: " + "9" * 50),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid JSON"),
        (b"[1]", "must be a JSON object, not array"),
        (b"null", "not null"),
        (b'"x"', "not string"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a":NaN}', "NaN is not a number"),
        (b'{"a":Infinity}', "Infinity"),
        (b'{"a":' + b"9" * 5000 + b"}", "invalid JSON"),
        (b'{"a":' + b"[" * 200_000, "invalid JSON"),
    ],
)
def test_bad_bodies_are_refused_with_a_reason(body, words):
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        parse_body(body)


def test_keys_match_whatever_their_case_and_the_exact_one_wins():
    assert Fields({"Model": "a"}).text("model") == "a"
    assert Fields({"MODEL": "a", "model": "b"}).text("model") == "b"


def test_null_is_absent():
    fields = Fields(dict.fromkeys("abcdef"))
    assert (fields.text("a"), fields.flag("b", True), fields.integer("c")) == ("", True, None)
    assert (fields.items("d"), fields.mapping("e"), fields.number("f")) == ([], {}, None)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (Fields.text, 1),
        (Fields.flag, "true"),
        (Fields.flag, 1),
        (Fields.integer, 1.5),
        (Fields.integer, True),
        (Fields.number, "1"),
        (Fields.items, {}),
        (Fields.mapping, []),
        (Fields.strings, ["a", 1]),
        (lambda fields, name: list(fields.objects(name)), [{}, 3]),
    ],
)
def test_wrong_types_name_the_field(read, value):
    with pytest.raises(InvalidRequest, match=r"outer\.x"):
        read(Fields({"x": value}, "outer."), "x")


def test_integers_may_be_whole_floats():
    assert Fields({"x": 3.0}).integer("x") == 3


def test_timestamps():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,8}[1-9])?(\.\d{1,9})?Z", jsontext.timestamp())
    when = datetime(2026, 8, 21, 10, 0, 0, 500_000, UTC)
    local = jsontext.local_time(when)
    assert datetime.fromisoformat(local) == when
    assert ".5" in local and ".500" not in local
    assert "." not in jsontext.local_time(datetime(2026, 8, 21, tzinfo=timezone(timedelta(hours=2))))


def test_halves_of_characters_become_replacement_characters() -> None:
    fields = parse_body(b'{"a": "x\\ud800y", "\\udfff": ["\\ud83d\\ude00"]}')
    assert fields.values == {"a": "x\ufffdy", "\ufffd": ["\U0001f600"]}


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_a_large_body_is_decoded_in_pieces_to_the_same_value(value):
    data = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "PIECE_BYTES", 8)
        assert parse_body(data + b" ").values == value
        assert (
            parse_body(b"\xef\xbb\xbf" + json.dumps(value, indent=1, ensure_ascii=False).encode()).values
            == value
        )


LARGE = "x" * jsontext.PIECE_BYTES


def test_halves_of_characters_are_replaced_in_a_large_body_too():
    body = rb'{"a": "\ud83d\ude00 \ud800 \\ud800 \uDC00\n", "\ud800": 1, "x": "' + LARGE.encode() + b'"}'
    assert parse_body(body).values == {"a": "😀 � \\ud800 �\n", "�": 1, "x": LARGE}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (b"", "invalid JSON"),
        (b', "a": NaN}', "invalid JSON"),
        (b', "a": [1e400]}', "invalid JSON: number is too large"),
        (b', "a": "\xff"}', "not UTF-8"),
        (b', "a": ' + b"[" * 2000, "invalid JSON"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_said(end, words):
    with pytest.raises(InvalidRequest, match=words):
        parse_body(b'{"x": "' + LARGE.encode() + b'"' + end)


def test_a_body_of_millions_of_values_is_refused():
    body = b'{"a": [' + b"[]," * (jsontext.MAX_VALUES + 1) + b"[]]}"
    with pytest.raises(InvalidRequest, match=f"more than {jsontext.MAX_VALUES} values"):
        parse_body(body)
