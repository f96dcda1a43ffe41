"""``ftd service``: the daemon as a service of the user, under systemd.

The unit has no settings in it: they live in the one config file that every way of starting reads, and neither
``install`` nor ``uninstall`` touches that. The shell's variables do not count there; ``install`` names those
that are set. Nothing starts by itself unless ``--enable`` asked for it.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from ftd import config, environment
from ftd.cli import output
from ftd.errors import Conflict, Unsupported

NAME = "ftd.service"
MARK = "# written by: ftd service install"
UNIT = f"""{MARK}
# Settings live in the config file that `ftd env` names, which no update touches; nothing is set here.
[Unit]
Description=ftd, a local model daemon
After=network-online.target

[Service]
ExecStart={{command}} serve
{{environment}}Restart=on-failure
RestartSec=3
# wrong usage or a bad setting does not mend itself
RestartPreventExitStatus=2
TimeoutStopSec=30
# an engine that the kernel kills for memory is started again by the daemon, which says so
OOMPolicy=continue
NoNewPrivileges=yes
# the engine pins weights where it may
LimitMEMLOCK=infinity

[Install]
WantedBy=default.target
"""


def run(options: argparse.Namespace) -> int:
    """Install, uninstall or describe the service."""
    if options.action == "status":
        return _status()
    if shutil.which("systemctl") is None:
        raise Unsupported("no systemd on this machine: systemctl not found", "run ftd serve by other means")
    if options.action == "uninstall":
        return _uninstall()
    return _install(options.enable)


def unit_path() -> Path:
    """Return where the unit of this user lies."""
    return environment.systemd_dir() / NAME


def unit_text() -> str:
    """Return the unit that starts the ftd that is running now."""
    script = Path(sys.argv[0])
    own = (
        [str(script.resolve())]
        if script.name == "ftd" and script.is_file()
        else environment.module_command("ftd")
    )
    place = environment.variables().get("FTD_HOME", "").strip()
    line = f"Environment={_quoted(f'FTD_HOME={environment.state_dir().absolute()}')}\n" if place else ""
    return UNIT.format(command=" ".join(map(_quoted, own)), environment=line)


def _quoted(word: str) -> str:
    """Return a word as a unit has it, where spaces separate and ``%`` stands for something."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _install(is_enabled: bool) -> int:
    path = unit_path()
    if path.exists() and MARK not in path.read_text("utf-8"):
        raise Conflict(f"a unit that ftd did not write is there: {path}", "move it away, or edit it yourself")
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    partial = path.with_suffix(".partial")
    partial.write_text(unit_text(), "utf-8")
    partial.replace(path)
    try:
        _systemctl("daemon-reload")
    except Unsupported:
        if is_new:  # nothing stays behind that uninstall, which needs systemd too, could not take away
            path.unlink()
        raise
    print(f"installed {path}", flush=True)
    sources, file = config.load().sources, environment.state_dir() / "config.toml"
    for setting in config.SETTINGS:
        if (source := sources.get(setting.name, "")) in environment.variables():
            output.note(
                f"note: {source} is set in this shell, not for the service: set {setting.key} in {file}"
            )
    if is_enabled:
        _systemctl("enable", "--now", NAME)
        print("started now, and with every login")
    else:
        output.note("nothing is started: systemctl --user start ftd, or ftd service install --enable")
    return 0


def _uninstall() -> int:
    path = unit_path()
    if not path.exists():
        print("not installed")
        return 0
    if MARK not in path.read_text("utf-8"):
        raise Conflict(f"a unit that ftd did not write is there: {path}", "remove it yourself")
    _systemctl("disable", "--now", NAME)
    path.unlink()
    _systemctl("daemon-reload")
    print(f"removed {path}; models and settings are left as they are")
    return 0


def _status() -> int:
    path = unit_path()
    print(f"unit       {path if path.exists() else 'not installed'}")
    for words in ("is-enabled", "is-active"):
        print(f"{words[3:]:<11}{_asked(words)}")
    print(f"settings   {environment.state_dir() / 'config.toml'}")
    return 0


def _asked(question: str) -> str:
    if shutil.which("systemctl") is None:
        return "no systemd"
    result = subprocess.run(
        ["systemctl", "--user", question, NAME], capture_output=True, text=True, check=False, timeout=20
    )
    return result.stdout.strip() or "no"


def _systemctl(*words: str) -> None:
    result = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, check=False, timeout=60
    )
    if result.returncode:
        reason = " ".join(result.stderr.split()) or f"exit status {result.returncode}"
        raise Unsupported(
            f"systemctl --user {' '.join(words)} failed: {reason}", "log in with a user session"
        )
