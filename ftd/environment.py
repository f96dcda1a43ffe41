"""What the process's environment says. Nothing else reads it; ``config`` gives its settings their meaning."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Variables of ours that are no settings: no file and no flag can set them
SWITCHES = {
    "FTD_HOME": "folder of the config file, chat history and registry key",
    "FTD_ISA": "highest instruction set of CPU kernels: scalar, avx2, avx512 or amx (unset: the machine's)",
    "FTD_KERNELS": "reference: slow kernels in NumPy, for bug reports; or cython, triton (unset: the best)",
}


def variables() -> Mapping[str, str]:
    """Return all variables."""
    return os.environ


def prepared() -> Mapping[str, str]:
    """Return the environment for processes that start from here, this one's too.

    NumPy multiplies nothing in daemon and engine; its threads would start, and spin for a while, in both.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return os.environ


def module_command(name: str) -> tuple[str, ...]:
    """Return the command that runs a module of ours.

    ``-P``: Python would look in the working folder first, and take a project's json.py for its own.
    """
    return sys.executable, "-P", "-m", name


def state_dir() -> Path:
    """Folder of the config file, REPL history and registry key."""
    return Path(os.environ.get("FTD_HOME", "").strip() or "~/.ftd").expanduser()


def systemd_dir() -> Path:
    """Folder of this user's systemd units, where systemd itself looks for it."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"


def is_terminal_dumb() -> bool:
    """Whether the terminal understands no escape sequences."""
    return os.environ.get("TERM") == "dumb"


def wants_color() -> bool:
    """Whether the person has not asked for text without colours."""
    return not os.environ.get("NO_COLOR")


def isa() -> str:
    """The instruction set that kernels are to stay at or below, empty for the machine's best."""
    return os.environ.get("FTD_ISA", "")


def kernels() -> str:
    """The implementation of kernels that is to be used instead of the best, empty for none."""
    return os.environ.get("FTD_KERNELS", "")
