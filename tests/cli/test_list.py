"""``ftd list``, checked against Ollama's layout typed by hand."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from fake_api import DIGEST, FakeApi, model

HOURS_AGO = (datetime.now(UTC) - timedelta(hours=5)).isoformat()
MODELS = [
    model("smollm2:latest", size=98_000_000, modified_at=HOURS_AGO),
    model("127.0.0.1:5000/library/llama3:8b"),
]


@pytest.mark.parametrize("verb", ["list", "ls"])
def test_the_table_has_ollamas_columns(cli, api: FakeApi, verb: str) -> None:
    api.answers["GET /api/tags"] = {"models": MODELS}
    result = cli(verb)
    assert result.stdout == (
        "NAME                                ID              SIZE      MODIFIED       \n"
        "smollm2:latest                      8eeb52dfb3bb    98 MB     5 hours ago    \n"
        "127.0.0.1:5000/library/llama3:8b    8eeb52dfb3bb    4.7 GB    6 years ago    \n"
    ).replace(
        "6 years ago", f"{(datetime.now(UTC) - datetime(2020, 1, 1, tzinfo=UTC)).days // 365} years ago"
    )
    assert (result.stderr, result.returncode) == ("", 0)


def test_a_prefix_filters_without_regard_to_case(cli, api: FakeApi) -> None:
    """CLI-1."""
    api.answers["GET /api/tags"] = {"models": MODELS}
    assert cli("list", "-q", "SMOL").stdout == "smollm2:latest\n"


def test_json_is_the_list_of_the_api(cli, api: FakeApi) -> None:
    """CLI-1."""
    api.answers["GET /api/tags"] = {"models": MODELS}
    assert json.loads(cli("ls", "--json").stdout) == MODELS


def test_no_models_give_the_header_only(cli, api: FakeApi) -> None:
    api.answers["GET /api/tags"] = {"models": []}
    assert cli("list").stdout == "NAME    ID    SIZE    MODIFIED    \n"
    assert cli("list", "--json").stdout == "[]\n"
    assert cli("list", "--quiet").stdout == ""


def test_a_remote_model_has_no_size(cli, api: FakeApi) -> None:
    api.answers["GET /api/tags"] = {"models": [model("far:cloud", remote_model="far")]}
    assert cli("list").stdout.splitlines()[1].split()[2] == "-"
    assert DIGEST[:12] in cli("list").stdout
