"""``ftd rm``."""

from fake_api import FakeApi


def test_each_model_is_unloaded_and_deleted(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = {"done": True}
    api.answers["DELETE /api/delete"] = None
    assert cli("rm", "a", "b").stdout == "deleted 'a'\ndeleted 'b'\n"
    assert [(path, body["model"]) for _, path, body in api.requests] == [
        ("/api/generate", "a"),
        ("/api/delete", "a"),
        ("/api/generate", "b"),
        ("/api/delete", "b"),
    ]


def test_a_model_that_will_not_stop_is_deleted_with_a_warning(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = (500, {"error": "engine trouble"})
    api.answers["DELETE /api/delete"] = None
    result = cli("rm", "a")
    assert result.stdout == "deleted 'a'\n" and result.returncode == 0
    assert result.stderr == "warning: unable to stop model 'a': engine trouble\n"


def test_a_missing_model_ends_it(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = api.answers["DELETE /api/delete"] = (
        404,
        {"error": "model 'a' not found"},
    )
    result = cli("rm", "a", "b")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "error: model 'a' not found\n")
    assert len(api.bodies("/api/delete")) == 1
