"""Numbers for people and the durations of Ollama's wire: bytes, counts, Go durations.

Durations are integers of nanoseconds everywhere; ``FOREVER_NS`` (int64 maximum) means never.
"""

import re
from datetime import datetime, timedelta

from ftd.errors import InvalidOption

FOREVER_NS = 2**63 - 1
_UNIT_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PIECE = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> int:
    """Parse a Go duration (``1h30m``, ``300ms``, ``-1s``, ``0``) into nanoseconds; raise InvalidOption."""
    rest, sign = text.strip(), 1
    if rest[:1] in ("-", "+"):
        sign, rest = (-1 if rest[0] == "-" else 1), rest[1:]
    if rest == "0":
        return 0
    total, end = 0.0, 0
    while end < len(rest):
        match = _PIECE.match(rest, end)
        if match is None:
            break
        total += float(match[1]) * _UNIT_NS[match[2]]
        end = match.end()
    if end == 0 or end != len(rest):
        if re.fullmatch(r"\d+\.?\d*|\.\d+", rest):
            raise InvalidOption(f'time: missing unit in duration "{text}"', "add a unit: ns us ms s m h")
        raise InvalidOption(f'time: invalid duration "{text}"', "write it as 5m, 1h30m or 300ms")
    return sign * int(min(total, FOREVER_NS))


def parse_keep_alive(value: object) -> int | None:
    """Turn a ``keep_alive`` field into nanoseconds: None means unchanged, FOREVER_NS never expires."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidOption(
            f"Unsupported type: '{value}'", "use seconds as a number or a duration such as 5m"
        )
    ns = parse_duration(value) if isinstance(value, str) else seconds_ns(value)
    return FOREVER_NS if ns < 0 else ns


def seconds_ns(seconds: float) -> int:
    """Return ``seconds`` in nanoseconds, capped at FOREVER_NS."""
    return FOREVER_NS if seconds >= FOREVER_NS / 1e9 else int(seconds * 1e9)


def format_duration(ns: int) -> str:
    """Format nanoseconds as Go prints a duration: ``1.5s``, ``2m3.25s``, ``870.5µs``."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if ns < size * 1000:
            return f"{sign}{_trim(ns / size)}{unit}"
    minutes, rest = divmod(ns, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_trim(rest / 10**9)}s"


def _trim(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def format_bytes(count: int) -> str:
    """Format a size in decimal units as Ollama does: ``637 MB``, ``4.7 GB``, ``12 B``."""
    value, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    if unit == "B" or value >= 10:
        return f"{int(value)} {unit}"
    text = f"{value:.1f}"
    return f"{int(float(text))} {unit}" if text.endswith(".0") else f"{text} {unit}"


def format_count(count: int) -> str:
    """Format a parameter count as Ollama does: ``8B``, ``7.2B``, ``134.52M``, ``12K``."""
    if count >= 10**9:
        value = f"{count / 10**9:.1f}"
        return f"{value.removesuffix('.0')}B"
    if count >= 10**6:
        value = f"{count / 10**6:.2f}"
        return f"{value.removesuffix('.00')}M"
    return f"{count // 1000}K" if count >= 1000 else str(count)


def format_age(when: datetime | None, now: datetime) -> str:
    """Say how long ago or ahead ``when`` is, in Ollama's words: ``3 days ago``, ``4 minutes from now``."""
    if when is None:
        return "Never"
    delta = now - when
    words = _span(abs(delta))
    return f"{words} ago" if delta >= timedelta(0) else f"{words} from now"


def _span(delta: timedelta) -> str:
    seconds = int(delta.total_seconds())
    minutes, hours = seconds // 60, round(seconds / 3600)
    days = seconds // 86400
    steps: list[tuple[bool, str]] = [
        (seconds < 1, "Less than a second"),
        (seconds == 1, "1 second"),
        (seconds < 60, f"{seconds} seconds"),
        (minutes == 1, "About a minute"),
        (minutes < 60, f"{minutes} minutes"),
        (hours == 1, "About an hour"),
        (hours < 48, f"{hours} hours"),
        (days < 14, f"{days} days"),
        (days < 60, f"{days // 7} weeks"),
        (days < 730, f"{days // 30} months"),
    ]
    return next((text for fits, text in steps if fits), f"{days // 365} years")
