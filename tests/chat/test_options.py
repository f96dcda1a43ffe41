"""Checked against the table of the reference page."""

import logging
from typing import Any

import pytest

from ftd.chat.options import OPTIONS, WITHOUT_EFFECT, check, merge, parse_parameter
from ftd.errors import InvalidOption


def test_defaults() -> None:
    options = merge({}, {})
    assert (options.num_ctx, options.num_predict, options.num_keep, options.stop) == (None, -1, 4, ())
    assert options.sampling == {}


def test_request_wins_over_modelfile_and_lists_replace() -> None:
    options = merge({"temperature": 0.1, "stop": ["x"]}, {"temperature": 0.5, "top_k": 3, "stop": ["a", "b"]})
    assert options.sampling == {"temperature": 0.1, "top_k": 3}
    assert options.stop == ("x",)


def test_floats_are_cut_where_integers_are_meant() -> None:
    assert merge({"num_ctx": 2048.9, "top_k": 40.7}).num_ctx == 2048
    assert merge({"top_k": 40.7}).sampling == {"top_k": 40}


@pytest.mark.parametrize(
    ("request_", "parameters", "device"),
    [
        ({}, {}, ""),
        ({"num_gpu": 0}, {}, "cpu"),
        ({"num_gpu": 99}, {}, ""),
        ({"num_gpu": -1}, {"num_gpu": 0}, ""),
        ({"device": "cuda"}, {"num_gpu": 0}, "cuda"),
        ({}, {"device": "cpu"}, "cpu"),
    ],
)
def test_where_a_model_is_loaded(request_: dict[str, Any], parameters: dict[str, Any], device: str) -> None:
    assert merge(request_, parameters).device == device


def test_null_is_skipped() -> None:
    assert merge({"temperature": None}, {"temperature": 0.5}).sampling == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_ctx", "4096", 'option "num_ctx" must be of type integer'),
        ("num_ctx", True, 'option "num_ctx" must be of type integer'),
        ("temperature", "hot", 'option "temperature" must be of type float32'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", 3, 'option "stop" must be of type array'),
        ("stop", ["a", 1], 'option "stop" must be of an array of strings'),
        ("temperature", float("nan"), 'option "temperature" is out of range: nan'),
        ("num_predict", 1e300, "is out of range"),
        ("repeat_penalty", -1, "must not be negative: -1"),
        ("device", "gpu", 'option "device" must be of type auto, cpu or cuda'),
        ("device", 0, 'option "device" must be of type auto, cpu or cuda'),
    ],
)
def test_wrong_types_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        merge({name: value})
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", -1, None),
        ("seed", 7, 7),
        ("top_p", 3, 1.0),
        ("min_p", -0.5, 0.0),
        ("temperature", -1, 0.0),
        ("repeat_penalty", 0, 1.0),
        ("repeat_last_n", -1, -1),
    ],
)
def test_values_are_brought_into_range(name: str, value: float, expected: float | None) -> None:
    assert merge({name: value}).sampling == {name: expected}


@pytest.mark.parametrize(("asked", "window"), [(0, None), (-1, None), (1, 4), (4096, 4096)])
def test_windows(asked: int, window: int | None) -> None:
    assert merge({"num_ctx": asked}).num_ctx == window


@pytest.mark.parametrize("name", ["mirostat", "nonsense"])
def test_names_without_effect_are_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert check({name: 1}) == {}
    assert name in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("num_ctx", "4096", 4096),
        ("use_mmap", "F", False),
        ("stop", "<|x|>", "<|x|>"),
        ("device", "cpu", "cpu"),
        ("mirostat_tau", "anything", None),
    ],
)
def test_parameters_are_typed(name: str, text: str, value: Any) -> None:
    assert parse_parameter(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("temprature", "1", "unknown parameter 'temprature'"),
        ("num_ctx", "4k", "invalid int value [4k]"),
        ("device", "gpu", "invalid device value [gpu]"),
        ("num_ctx", "9" * 30, "invalid int value"),
        ("temperature", "warm", "invalid float value [warm]"),
        ("temperature", "inf", "invalid float value [inf]"),
        ("use_mmap", "yes", "invalid bool value [yes]"),
    ],
)
def test_bad_parameters_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_parameter(name, text)
    assert message in caught.value.message


def test_no_name_is_both_known_and_old() -> None:
    assert not WITHOUT_EFFECT & OPTIONS.keys()
