"""``ftd env``: every setting with value and source."""

import json
from pathlib import Path

from ftd.config import SETTINGS
from ftd.environment import SWITCHES


def rows(cli, **env: str) -> dict[str, dict[str, str]]:  # type: ignore[no-untyped-def]
    return {row["variable"]: row for row in json.loads(cli("env", "--json", env=env).stdout)}


def test_every_setting_has_a_row(cli) -> None:
    found = rows(cli)
    assert list(found) == [*(setting.variable for setting in SETTINGS), *SWITCHES]
    assert all(row["meaning"] for row in found.values())


def test_sources(cli, environment: dict[str, str]) -> None:
    home = Path(environment["FTD_HOME"])
    home.mkdir()
    (home / "config.toml").write_text("max_queue = 7\n")
    found = rows(cli, FTD_NUM_THREADS="3", OLLAMA_KEEP_ALIVE="-1", FTD_MODELS="/m")
    assert (found["FTD_MAX_QUEUE"]["value"], found["FTD_MAX_QUEUE"]["source"]) == ("7", "config.toml")
    assert (found["FTD_NUM_THREADS"]["value"], found["FTD_NUM_THREADS"]["source"]) == ("3", "FTD_NUM_THREADS")
    assert (found["FTD_KEEP_ALIVE"]["value"], found["FTD_KEEP_ALIVE"]["source"]) == (
        "forever",
        "OLLAMA_KEEP_ALIVE",
    )
    assert (found["FTD_NOPRUNE"]["value"], found["FTD_NOPRUNE"]["source"]) == ("false", "default")
    assert found["FTD_MODELS"]["value"] == "/m"


def test_switches_are_shown_as_they_count(cli, environment: dict[str, str]) -> None:
    found = rows(cli, FTD_ISA="avx2", FTD_KERNELS="")
    assert (found["FTD_ISA"]["value"], found["FTD_ISA"]["source"]) == ("avx2", "FTD_ISA")
    assert (found["FTD_KERNELS"]["value"], found["FTD_KERNELS"]["source"]) == ("-", "default")
    assert (found["FTD_HOME"]["value"], found["FTD_HOME"]["source"]) == (environment["FTD_HOME"], "FTD_HOME")


def test_the_table_names_the_config_file_on_standard_error(cli, environment: dict[str, str]) -> None:
    result = cli("env")
    assert result.stdout.startswith("VARIABLE ")
    path = f"{environment['FTD_HOME']}/config.toml"
    assert result.stderr == f'\nconfig file: {path}, where a line is such as: keep_alive = "1h"\n'


def test_it_needs_no_daemon(cli) -> None:
    assert cli("env", env={"FTD_HOST": "127.0.0.1:1"}).returncode == 0


def test_a_misspelt_variable_is_named(cli) -> None:
    result = cli("env", env={"FTD_KEEPALIVE": "1h", "FTD_Q": "1", "FTD_PEER": "of benchmarks"})
    assert "warning: FTD_KEEPALIVE is no setting; did you mean FTD_KEEP_ALIVE?\n" in result.stderr
    assert "warning: FTD_Q is no setting\n" in result.stderr
    assert "FTD_PEER" not in result.stderr
