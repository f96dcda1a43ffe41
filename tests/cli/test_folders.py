"""Folders that cannot be written: the error names the setting that would have another one."""

from pathlib import Path

import pytest
from ports import free_port

from ftd.cli import folders

# Nobody makes folders there, not even root
SEALED = Path("/sys/ftd")


@pytest.mark.parametrize(("words", "name"), [(("list",), "FTD_HOME"), (("serve",), "FTD_MODELS")])
def test_the_setting_is_named(cli, words: tuple[str, ...], name: str) -> None:  # type: ignore[no-untyped-def]
    result = cli(*words, env={name: str(SEALED), "FTD_HOST": f"127.0.0.1:{free_port()}"})
    assert result.returncode == 1
    error, hint = result.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and error.endswith(f": {SEALED}")
    assert hint == f"hint: set {name} to a folder that can be written"


@pytest.mark.parametrize(
    "exc", [PermissionError(13, "no", "/etc/shadow"), PermissionError(13, "no"), OSError(28, "full", SEALED)]
)
def test_of_other_files_and_errors_it_says_nothing(exc: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTD_MODELS", str(SEALED))
    assert folders.hint(exc) is None
