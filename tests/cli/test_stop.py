"""``ftd stop``: what is sent and what a missing model gets."""

from fake_api import FakeApi
from ports import free_port


def test_stop_sends_a_keep_alive_of_zero(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = {"done": True, "done_reason": "unload"}
    result = cli("stop", "m")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert api.bodies("/api/generate") == [{"model": "m", "keep_alive": 0, "stream": False}]


def test_a_missing_model(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = (404, {"error": "model 'm' not found"})
    result = cli("stop", "m")
    assert result.returncode == 1
    assert result.stderr == 'error: couldn\'t find model "m" to stop\nhint: ftd ps\n'


def test_without_a_daemon_there_is_nothing_to_stop(cli) -> None:
    port = free_port()
    result = cli("stop", "m", env={"FTD_HOST": f"127.0.0.1:{port}"})
    assert (result.returncode, result.stderr) == (
        1,
        'error: couldn\'t find model "m" to stop\nhint: ftd ps\n',
    )


def test_another_failure_keeps_its_text(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = (400, {"error": "invalid model name"})
    assert cli("stop", "m").stderr == "error: invalid model name\n"
