"""``ftd registry serve`` as a process."""

import http.client
import signal
import subprocess
import sys
from pathlib import Path

from fake_api import TIMEOUT_S
from ports import free_port
from terminal import killed_on_failure


def test_it_serves_an_empty_store_and_ends_on_a_signal(environment: dict[str, str], tmp_path: Path) -> None:
    environment.pop("PYTHONWARNINGS")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "ftd",
        "registry",
        "serve",
        "--port",
        str(port),
        "--root",
        str(tmp_path / "r"),
    ]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
        killed_on_failure(process),
    ):
        assert process.stderr is not None
        line = next(line for line in process.stderr if "registry listening" in line)
        assert f"address=127.0.0.1:{port}" in line
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        connection.request("GET", "/v2/_catalog")
        assert connection.getresponse().read().strip() == b'{"repositories":[]}'
        connection.close()
        taken = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert taken.returncode == 1
        assert f"error: the address is in use: 127.0.0.1:{port}\n" in taken.stderr
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_wrong_usage(cli) -> None:
    assert cli("registry").returncode == 2
    assert "invalid choice: 'start'" in cli("registry", "start").stderr
    assert cli("registry", "serve", "--port", "70000").stderr == (
        "error: --port must be between 0 and 65535: 70000\n"
    )


def test_a_host_that_is_none_is_named(cli, tmp_path: Path) -> None:
    result = cli("registry", "serve", "--host", "127.0.0.1:5001", "--root", str(tmp_path / "r"))
    assert result.returncode == 2
    assert result.stderr.startswith("error: cannot listen on 127.0.0.1:5001:5000: ")
    assert "its port as --port" in result.stderr
