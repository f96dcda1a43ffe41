"""Starting the daemon, with a small HTTP server in its place."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api import FakeApi
from ports import free_port

from ftd import environment
from ftd.cli import background
from ftd.cli.client import DaemonUnreachable

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200); self.end_headers()
print("pid", os.getpid(), os.getsid(0) == os.getpid(), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    free = free_port()
    monkeypatch.setenv("FTD_HOST", f"127.0.0.1:{free}")
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    return free


@pytest.fixture
def log_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / background.LOG_NAME
    yield path
    words = path.read_text().split() if path.exists() else []
    if "pid" in words:
        os.kill(int(words[words.index("pid") + 1]), signal.SIGKILL)
        os.wait()


def test_a_daemon_is_started_detached_and_waited_for(
    port: int, log_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "SERVE", (sys.executable, "-c", SERVER, str(port)))
    assert background.connect().is_up()
    assert capsys.readouterr().err == f"starting the daemon: http://127.0.0.1:{port}, log {log_path}\n"
    assert log_path.read_text().split()[2] == "True", "it must lead its own session"


def test_a_daemon_that_ends_is_an_error_with_its_last_word(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_path = tmp_path / background.LOG_NAME
    log_path.write_text("error: of an earlier run\n")
    monkeypatch.setattr(background, "_OTHER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(
        background, "SERVE", ("sh", "-c", "echo 'error: the disk is full'; echo 'hint: x'; exit 3")
    )
    with pytest.raises(DaemonUnreachable) as caught:
        background.connect()
    assert caught.value.message == "the daemon ended with code 3: error: the disk is full"
    assert caught.value.hint == f"see {log_path}"


def test_a_second_start_uses_the_first(api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FTD_HOST", f"127.0.0.1:{api.port}")
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    monkeypatch.setattr(background, "SERVE", ("false",))
    answers = iter([False, False])
    real = background.Client.is_up
    monkeypatch.setattr(background.Client, "is_up", lambda self: next(answers, None) is None and real(self))
    assert background.connect().address.port == api.port


def test_nothing_is_started_where_it_is_not_wanted(port: int) -> None:
    with pytest.raises(DaemonUnreachable, match=f"no daemon listens: http://127.0.0.1:{port}"):
        background.connect(start=False)


@pytest.mark.parametrize("host", ["192.0.2.1:1", "https://127.0.0.1:1", "example.invalid:1", "0.0.0.0:1"])
def test_only_a_loopback_daemon_is_started(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FTD_HOST", host)
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    monkeypatch.setattr(background.Client, "is_up", lambda self: False)
    monkeypatch.setattr(background, "SERVE", ("must not run",))
    with pytest.raises(DaemonUnreachable, match="no daemon listens"):
        background.connect()
    assert not (environment.state_dir() / background.LOG_NAME).exists()


def test_a_large_log_is_put_aside(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_path = tmp_path / background.LOG_NAME
    log_path.write_bytes(b"x" * 100)
    monkeypatch.setattr(background, "_MAX_LOG_BYTES", 99)
    monkeypatch.setattr(background, "_OTHER_TIMEOUT_S", 0.0)
    monkeypatch.setattr(background, "SERVE", ("false",))
    with pytest.raises(DaemonUnreachable, match="its log is empty"):
        background.connect()
    assert (tmp_path / "serve.log.1").stat().st_size == 100
