"""``ftd push``."""

from fake_api import FakeApi


def test_push_shows_progress_and_the_name(cli, api: FakeApi) -> None:
    api.answers["POST /api/push"] = [
        {"status": "retrieving manifest"},
        {"status": "pushing 8eeb52dfb3bb", "digest": "sha256:8eeb", "total": 10, "completed": 10},
        {"status": "pushing manifest"},
        {"status": "success"},
    ]
    result = cli("push", "--insecure", "localhost:5000/a/b")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        "retrieving manifest\npushing 8eeb52dfb3bb\npushing manifest\nsuccess\n"
        "\nYou can find your model at:\n\n\tlocalhost:5000/a/b\n"
    )
    assert api.bodies("/api/push") == [{"model": "localhost:5000/a/b", "insecure": True}]


def test_a_failed_push_does_not_claim_an_address(cli, api: FakeApi) -> None:
    api.answers["POST /api/push"] = [
        {"status": "retrieving manifest"},
        {"error": "couldn't retrieve manifest"},
    ]
    result = cli("push", "b")
    assert result.returncode == 1 and "You can find" not in result.stderr
