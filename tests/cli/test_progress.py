"""Bars, checked against Ollama's line typed by hand; redrawing, checked by playing the terminal."""

import io
import re

import pytest
from terminal import TerminalStream

from ftd.cli import progress


def bar(completed: int, total: int, seconds: float = 0.0, before: int = 0) -> progress.Bar:
    result = progress.Bar("pulling 8eeb52dfb3bb:", total)
    result.update(before, 0.0)
    result.update(completed, seconds)
    return result


def test_a_bar_in_the_middle() -> None:
    line = bar(1_900_000_000, 4_700_000_000, 35.0).line(100)
    assert line == f"pulling 8eeb52dfb3bb:  40% ▕{'█' * 15}{' ' * 24}▏ 1.9 GB/4.7 GB   54 MB/s    51s"
    assert len(line) == 99


def test_a_bar_that_is_done_shows_only_the_size() -> None:
    line = bar(4_700_000_000, 4_700_000_000, 9.0).line(100)
    assert line.startswith("pulling 8eeb52dfb3bb: 100% ▕██") and line.endswith("█▏ 4.7 GB")


def test_a_bar_without_a_rate_yet() -> None:
    assert re.fullmatch(r"pulling 8eeb52dfb3bb:   0% ▕ +▏ 0 B/1 KB", bar(0, 1000).line(90))


def test_a_narrow_terminal_gets_no_bar() -> None:
    line = bar(500, 1000, 1.0).line(40)
    assert len(line) <= 39 and "▕" not in line and line.startswith("pulling 8eeb52dfb3bb:  50%")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    moving = progress.Bar("x", 10**9)
    for second in range(30):
        moving.update(second * 1000 if second < 10 else 10_000, float(second))
    assert moving.rate == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(51, "51s"), (61, "1m1s"), (3700, "1h1m"), (10**7, "99h+")])
def test_short_times(seconds: float, text: str) -> None:
    assert progress._short_time(seconds) == text


ITEMS = [
    {"status": "pulling manifest"},
    {"status": "pulling aa", "digest": "sha256:aa", "total": 100},
    {"status": "pulling aa", "digest": "sha256:aa", "total": 100, "completed": 60},
    {"status": "pulling aa", "digest": "sha256:aa", "total": 100, "completed": 100},
    {"status": "verifying sha256 digest"},
    {"status": "success"},
]


def feed(shown: progress.Progress) -> None:
    with shown:
        for item in ITEMS:
            if "digest" in item:
                shown.bar(f"{item['status']}:", item.get("completed", 0), item["total"])
            else:
                shown.status(item["status"])


def test_without_a_terminal_each_status_is_one_plain_line() -> None:
    stream = io.StringIO()
    feed(progress.Progress(stream))
    assert stream.getvalue() == "pulling manifest\npulling aa\nverifying sha256 digest\nsuccess\n"


def screen(text: str) -> list[str]:
    """What a terminal shows: only \\r, \\n, cursor up and erase to the end of the line are known."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[A-Z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b") and part.endswith("A"):
            row -= int(part[2:-1])
        elif part == "\x1b[K":
            lines[row] = lines[row][:column]
        else:
            lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_on_a_terminal_every_stage_keeps_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = TerminalStream()
    times = iter(range(100))
    feed(progress.Progress(stream, clock=lambda: float(next(times))))
    shown = screen(stream.getvalue())
    assert shown[0] == "pulling manifest"
    assert shown[1].startswith("pulling aa: 100% ▕") and shown[1].endswith("▏ 100 B")
    assert shown[2:] == ["verifying sha256 digest", "success", ""]


def test_a_spinner_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Spinner("loading ") as spinner:
        spinner.stop()
        spinner.stop()
    assert capsys.readouterr().err == ""
