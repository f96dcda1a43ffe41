"""Units against the wire facts of Ollama and Go's own formats."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd import units
from ftd.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5m", 300 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("300ms", 3 * 10**8),
        ("1.5h", 5400 * 10**9),
        ("-1m", -60 * 10**9),
        ("0", 0),
        ("1µs", 1000),
        ("10ns", 10),
        # no more than 64 bits hold, however many digits there are
        ("9" * 20 + "h", units.FOREVER_NS),
        ("9" * 400 + "s", units.FOREVER_NS),
        ("-" + "9" * 400 + "s", -units.FOREVER_NS),
    ],
)
def test_parse_duration_reads_go_durations(text: str, ns: int) -> None:
    assert units.parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "1h30", "abc", "-", "5x", "1m-1s"])
def test_parse_duration_refuses_other_text(text: str) -> None:
    with pytest.raises(InvalidOption):
        units.parse_duration(text)


def test_a_bare_number_in_a_string_names_the_missing_unit() -> None:
    with pytest.raises(InvalidOption, match='missing unit in duration "5"'):
        units.parse_duration("5")


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (None, None),
        (0, 0),
        (30, 30 * 10**9),
        (0.5, 5 * 10**8),
        (-1, units.FOREVER_NS),
        ("-1s", units.FOREVER_NS),
    ],
)
def test_parse_keep_alive_follows_the_wire_table(value: object, ns: int | None) -> None:
    assert units.parse_keep_alive(value) == ns


@pytest.mark.parametrize("value", [True, [], {}])
def test_parse_keep_alive_refuses_other_types(value: object) -> None:
    with pytest.raises(InvalidOption, match="Unsupported type"):
        units.parse_keep_alive(value)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (870_500, "870.5µs"),
        (1_500_000, "1.5ms"),
        (1_500_000_000, "1.5s"),
        (123_250_000_000, "2m3.25s"),
        (3_600_000_000_000, "1h0m0s"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_format_duration_prints_as_go(ns: int, text: str) -> None:
    assert units.format_duration(ns) == text


@given(st.integers(0, 10**15))
def test_a_formatted_duration_parses_to_itself(ns: int) -> None:
    assert abs(units.parse_duration(units.format_duration(ns)) - ns) <= max(1, ns // 10**9)


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 B"), (637_000_000, "637 MB"), (4_700_000_000, "4.7 GB"), (2000, "2 KB"), (98_362_432, "98 MB")],
)
def test_format_bytes_is_decimal_as_ollama(count: int, text: str) -> None:
    assert units.format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (8 * 10**9, "8B"),
        (7_200_000_000, "7.2B"),
        (134_515_008, "134.52M"),
        (137 * 10**6, "137M"),
        (12345, "12K"),
        (7, "7"),
    ],
)
def test_format_count_is_as_ollama(count: int, text: str) -> None:
    assert units.format_count(count) == text


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (timedelta(seconds=1), "1 second ago"),
        (timedelta(seconds=75), "About a minute ago"),
        (timedelta(minutes=50), "50 minutes ago"),
        (timedelta(minutes=61), "About an hour ago"),
        (timedelta(days=3), "3 days ago"),
        (timedelta(days=20), "2 weeks ago"),
        (timedelta(minutes=-4), "4 minutes from now"),
    ],
)
def test_format_age_uses_ollamas_words(delta: timedelta, text: str) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert units.format_age(now - delta, now) == text


def test_format_age_of_nothing_is_never() -> None:
    assert units.format_age(None, datetime.now(UTC)) == "Never"
