"""``ftd version``."""

import json

from fake_api import FakeApi
from ports import free_port

import ftd


def test_both_versions(cli, api: FakeApi) -> None:
    assert cli("version").stdout == (
        f"ftd version is {ftd.__version__}\n"
        f"the daemon at http://127.0.0.1:{api.port} speaks Ollama API 0.13.5\n"
    )
    assert json.loads(cli("version", "--json").stdout) == {
        "version": ftd.__version__,
        "daemon": f"http://127.0.0.1:{api.port}",
        "api_version": "0.13.5",
    }


def test_without_a_daemon_it_warns(cli) -> None:
    host = f"127.0.0.1:{free_port()}"
    result = cli("version", env={"FTD_HOST": host})
    assert result.stdout == f"ftd version is {ftd.__version__}\n"
    assert result.stderr == f"warning: no daemon listens: http://{host}\n"
    assert json.loads(cli("version", "--json", env={"FTD_HOST": host}).stdout)["daemon"] is None
