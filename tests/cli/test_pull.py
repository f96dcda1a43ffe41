"""``ftd pull`` in a pipe and at a terminal."""

from fake_api import FakeApi

DIGEST = "sha256:8eeb52dfb3bb"
LINES = [
    {"status": "pulling manifest"},
    {"status": "pulling 8eeb52dfb3bb", "digest": DIGEST, "total": 2_000_000},
    {"status": "pulling 8eeb52dfb3bb", "digest": DIGEST, "total": 2_000_000, "completed": 1_000_000},
    {"status": "pulling 8eeb52dfb3bb", "digest": DIGEST, "total": 2_000_000, "completed": 2_000_000},
    {"status": "verifying sha256 digest"},
    {"status": "writing manifest"},
    {"status": "success"},
]


def test_in_a_pipe_there_are_no_bars_and_no_escape_codes(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/pull"] = LINES
    result = process_cli("pull", "--insecure", "m")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        "pulling manifest\npulling 8eeb52dfb3bb\nverifying sha256 digest\nwriting manifest\nsuccess\n"
    )
    assert api.bodies("/api/pull") == [{"model": "m", "insecure": True}]


def test_at_a_terminal_there_is_a_bar(terminal, api: FakeApi) -> None:
    api.answers["POST /api/pull"] = LINES
    shown, code = terminal("pull", "m").end()
    assert code == 0
    assert "pulling 8eeb52dfb3bb: 100% ▕" in shown and "▏ 2 MB" in shown
    assert shown.rstrip().split("\n")[-1].startswith("success")


def test_an_error_in_the_stream_exits_with_1(cli, api: FakeApi) -> None:
    api.answers["POST /api/pull"] = [
        {"status": "pulling manifest"},
        {"error": "pull model manifest: file does not exist"},
    ]
    result = cli("pull", "nosuch")
    assert result.returncode == 1
    assert result.stderr == "pulling manifest\nerror: pull model manifest: file does not exist\n"
