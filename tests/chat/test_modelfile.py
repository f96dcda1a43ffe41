"""Checked against the lexical rules of the reference page; parse(format(x)) = x as a property."""

import codecs
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.modelfile import Modelfile, format_modelfile, format_parameters, parse_modelfile
from ftd.errors import InvalidModelfile

WHOLE = '''# a comment
FROM ./model.gguf
parameter temperature 0.5
PARAMETER stop "<|im_end|>"
PARAMETER stop User:

TEMPLATE """{{ .System }}
{{ .Prompt }}
"""
  SYSTEM You are # not a comment
LICENSE MIT
LICENSE "Apache
2.0"
MESSAGE user "hello
there"
MESSAGE assistant hi
REQUIRES v0.14.0
'''


def test_a_whole_file() -> None:
    file = parse_modelfile(WHOLE.encode())
    assert file == Modelfile(
        from_=["./model.gguf"],
        template="{{ .System }}\n{{ .Prompt }}\n",
        system="You are # not a comment",
        parameters={"temperature": 0.5, "stop": ["<|im_end|>", "User:"]},
        messages=[{"role": "user", "content": "hello\nthere"}, {"role": "assistant", "content": "hi"}],
        licenses=["MIT", "Apache\n2.0"],
        requires="0.14.0",
    )


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + WHOLE.encode(),
        codecs.BOM_UTF16_LE + WHOLE.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + WHOLE.encode("utf-16-be"),
        WHOLE.replace("\n", "\r\n").encode(),
        WHOLE.replace("\n", "\r").encode(),
        codecs.BOM_UTF16_LE + WHOLE.replace("\n", "\r\n").encode("utf-16-le"),
    ],
)
def test_encodings_and_line_ends_do_not_matter(data: bytes) -> None:
    """MOD-1."""
    assert parse_modelfile(data) == parse_modelfile(WHOLE.encode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a  ", "a"),
        ('"a"', "a"),
        ('"""a"""', "a"),
        ('""', ""),
        ('""""a""""', '"a"'),
        ("'a'", "'a'"),
        ('"a" b\nc"', 'a" b\nc'),
        ('"""a\n """', "a\n "),
        ("a\x07b\tc", "ab\tc"),
        ('"a\x07b"', "a\x07b"),
    ],
)
def test_values(value: str, expected: str) -> None:
    assert parse_modelfile(f"FROM x\nSYSTEM {value}\n".encode()).system == expected


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("FROM x\n\n\n\n\n\nFRMO y", 7, 'command must be one of "from", "license", "template"'),
        ("FROM x\nMESSAGE robot hi", 2, 'message role must be one of "system", "user", or "assistant"'),
        ('FROM x\nSYSTEM """abc\ndef', 2, "unexpected EOF"),
        ("FROM x\nSYSTEM", 2, "unexpected EOF"),
        ("FROM x\nPARAMETER temperature", 2, "unexpected EOF"),
        ("FROM x\nPARAMETER temprature 1", 2, "unknown parameter 'temprature'"),
        ("FROM x\nPARAMETER num_ctx many", 2, "invalid int value [many]"),
        ("FROM x\nREQUIRES soon", 2, "requires must be a valid semver (e.g. 0.14.0)"),
    ],
)
def test_errors_name_file_line_and_text(text: str, line: int, message: str) -> None:
    """MOD-1."""
    with pytest.raises(InvalidModelfile) as caught:
        parse_modelfile(text.encode(), "my.Modelfile")
    assert caught.value.message.startswith(f"my.Modelfile: (line {line}): ")
    assert message in caught.value.message


def test_errors_quote_the_offending_text() -> None:
    with pytest.raises(InvalidModelfile, match="FRMO y"):
        parse_modelfile(b"FROM x\nFRMO y")


@pytest.mark.parametrize("data", [b"", b"# only\n", b"SYSTEM x"])
def test_a_file_without_from_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidModelfile, match="no FROM line"):
        parse_modelfile(data)


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(InvalidModelfile, match=r"\(line 2\): not utf-8 text"):
        parse_modelfile(b"FROM x\nSYSTEM \xff\xfe")


def test_deprecated_parameters_are_skipped_with_a_warning() -> None:
    file = parse_modelfile(b"FROM x\nPARAMETER mirostat 1")
    assert file.parameters == {}
    assert file.warnings == ["parameter mirostat is deprecated"]


# What cannot be written: control characters outside of quotes, and quotes at the end of an inner line
texts = st.text(st.sampled_from('ab "\n#{}é '), max_size=20).filter(
    lambda text: not any(line.rstrip().endswith('"') for line in text.split("\n")[:-1]) and '"""' not in text
)


@given(texts, texts, st.lists(texts, max_size=2))
def test_what_is_written_is_read_back(system: str, template: str, stops: list[str]) -> None:
    parameters: dict[str, Any] = {"stop": stops, "top_k": 3, "temperature": 0.25} if stops else {}
    messages = [{"role": "user", "content": system}]
    file = Modelfile(["x"], template, system, parameters, messages, [template])
    assert parse_modelfile(format_modelfile(file).encode()) == file


def test_parameters_as_show_prints_them() -> None:
    text = format_parameters({"temperature": 0.7, "stop": ['<|"x"|>', "b"], "num_ctx": 4096})
    assert text == (
        "num_ctx                        4096\n"
        'stop                           "<|\\"x\\"|>"\n'
        'stop                           "b"\n'
        "temperature                    0.7"
    )
