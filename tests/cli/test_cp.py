"""``ftd cp``."""

from fake_api import FakeApi


def test_copy(cli, api: FakeApi) -> None:
    api.answers["POST /api/copy"] = None
    assert cli("cp", "a", "b").stdout == "copied 'a' to 'b'\n"
    assert api.bodies("/api/copy") == [{"source": "a", "destination": "b"}]


def test_a_missing_source(cli, api: FakeApi) -> None:
    api.answers["POST /api/copy"] = (404, {"error": 'model "a" not found'})
    result = cli("cp", "a", "b")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", 'error: model "a" not found\n')
