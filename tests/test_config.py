"""Configuration against the precedence rule."""

from pathlib import Path

import pytest

from ftd import config, units
from ftd.errors import InvalidOption


def test_precedence_is_flag_then_own_variable_then_ollamas_then_file_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('host = "1.1.1.1"\nmax_queue = 9\n')
    environ = {"OLLAMA_HOST": "2.2.2.2", "FTD_HOST": "3.3.3.3", "OLLAMA_KEEP_ALIVE": "-1"}

    by_flag = config.load({"host": "4.4.4.4"}, environ)
    by_variable = config.load({}, environ)
    by_ollama = config.load({}, {"OLLAMA_HOST": "2.2.2.2"})
    by_file = config.load({}, {})

    assert [c.server.host for c in (by_flag, by_variable, by_ollama, by_file)] == [
        "4.4.4.4", "3.3.3.3", "2.2.2.2", "1.1.1.1",
    ]  # fmt: skip
    assert by_variable.server.keep_alive_ns == units.FOREVER_NS
    assert by_file.server.max_queue == 9
    assert by_file.sources["max_queue"] == "config.toml"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FTD_MAX_QUEUE", "many"),
        ("FTD_MAX_QUEUE", "0"),
        ("FTD_KEEP_ALIVE", "soon"),
        ("FTD_GPU_MEMORY", "big"),
        ("FTD_PRECISION", "double"),
        ("FTD_LOG_LEVEL", "loud"),
        ("FTD_NOPRUNE", "maybe"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_source(variable: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=variable):
        config.load({}, {variable: value})


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text("hots = 1\n")
    with pytest.raises(InvalidOption, match=r"unknown setting in config\.toml: hots"):
        config.load({}, {})


def test_every_setting_names_a_field_of_its_section_once() -> None:
    rows = [(setting.section, setting.name) for setting in config.SETTINGS]
    known = {
        (section, name)
        for section in (config.ServerConfig, config.RegistryConfig, config.EngineConfig)
        for name in section._fields
    }
    assert len(rows) == len(set(rows))
    assert set(rows) == known


def test_sizes_are_binary() -> None:
    assert config.load({}, {"FTD_EXPERTS": "split=0.25"}).engine.experts == "split=0.25"
    assert config.load({}, {"FTD_GPU_MEMORY": "24GiB"}).engine.gpu_memory_bytes == 24 << 30


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "x:80a", "http://x:y/z", "[::1]:-1", "x:\u0661"])
def test_a_port_that_is_none_is_refused(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default port was used in silence: another daemon's."""
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    with pytest.raises(InvalidOption, match="FTD_HOST: not a port"):
        config.load(environ={"FTD_HOST": host})
    assert config.load(environ={"OLLAMA_HOST": host}).server.host == host


@pytest.mark.parametrize(
    "host",
    ["x", "x:0", "x:65535", ":80", "[::1]:80", "::1", "[::1]", "https://x/a:b", "http://x:80/"],
)
def test_other_hosts_are_taken(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    assert config.load(environ={"FTD_HOST": host}).server.host == host
