"""``ftd service`` with a systemctl that writes down what it is asked."""

import sys
from pathlib import Path

import pytest

from ftd.cli import service


@pytest.fixture
def systemd(tmp_path: Path) -> tuple[dict[str, str], Path, Path]:
    """Environment, unit file and log of the calls."""
    log, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    script = tools / "systemctl"
    script.write_text(f'#!/bin/sh\necho "$*" >> {log}\n[ "$2" = is-active ] && echo active || true\n')
    script.chmod(0o755)
    settings = tmp_path / "settings"
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "XDG_CONFIG_HOME": str(settings)}
    return environment, settings / "systemd" / "user" / "ftd.service", log


def test_svc_1_nothing_starts_unless_asked_for(cli, systemd) -> None:  # type: ignore[no-untyped-def]
    environment, unit, log = systemd
    result = cli("service", "install", env=environment)
    assert (result.returncode, result.stdout) == (0, f"installed {unit}\n")
    assert log.read_text() == "--user daemon-reload\n" and " serve\n" in unit.read_text()
    assert cli("service", "install", "--enable", env=environment).returncode == 0
    assert log.read_text().endswith("--user enable --now ftd.service\n")
    status = cli("service", "status", env=environment).stdout
    assert str(unit) in status and "active     active" in status
    assert cli("service", "uninstall", env=environment).returncode == 0
    assert not unit.exists() and "--user disable --now ftd.service" in log.read_text()
    assert cli("service", "uninstall", env=environment).stdout == "not installed\n"


def test_the_unit_starts_this_ftd_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / 'my "100%" apps' / "ftd"
    script.parent.mkdir()
    script.touch()
    monkeypatch.setattr("sys.argv", [str(script)])
    start = f'ExecStart="{tmp_path}/my \\"100%%\\" apps/ftd" serve'
    assert start in service.unit_text().splitlines()
    monkeypatch.setattr("sys.argv", ["-m"])
    assert f'ExecStart="{sys.executable}" "-P" "-m" "ftd" serve' in service.unit_text().splitlines()


def test_it_reads_the_config_file_that_this_shell_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTD_HOME", raising=False)
    assert "Environment=" not in service.unit_text()
    monkeypatch.setenv("FTD_HOME", "/a b")
    assert 'Environment="FTD_HOME=/a b"' in service.unit_text().splitlines()


def test_variables_of_the_shell_are_named(cli, systemd) -> None:  # type: ignore[no-untyped-def]
    environment, _, _ = systemd
    result = cli("service", "install", env=environment | {"FTD_MODELS": "/models", "OLLAMA_KEEP_ALIVE": "1h"})
    assert "note: FTD_MODELS is set in this shell, not for the service: set models in " in result.stderr
    assert "note: OLLAMA_KEEP_ALIVE is set in this shell" in result.stderr
    assert "set keep_alive in " in result.stderr


def test_a_unit_of_somebody_else_is_left_alone(cli, systemd) -> None:  # type: ignore[no-untyped-def]
    environment, unit, _ = systemd
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    for action in ("install", "uninstall"):
        result = cli("service", action, env=environment)
        assert result.returncode == 1 and "did not write" in result.stderr
    assert unit.read_text() == "[Unit]\n"


def test_without_systemd_it_says_so(cli, systemd, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    environment, unit, _ = systemd
    result = cli("service", "install", env=environment | {"PATH": str(tmp_path)})
    assert result.returncode == 1 and "systemctl not found" in result.stderr and not unit.exists()
    assert "not installed" in cli("service", "status", env=environment | {"PATH": str(tmp_path)}).stdout


def test_an_install_that_fails_leaves_nothing(cli, systemd, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """As over ssh without a user session: uninstall would fail for the same reason."""
    environment, unit, _ = systemd
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho 'no bus' >&2; exit 1\n")
    result = cli("service", "install", env=environment)
    assert result.returncode == 1 and "daemon-reload failed: no bus" in result.stderr
    assert not unit.exists()
    assert cli("service", "uninstall", env=environment).stdout == "not installed\n"
