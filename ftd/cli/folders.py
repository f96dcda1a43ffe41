"""What to do about a folder of ours that cannot be written, as in a home folder that is read-only."""

import contextlib
import errno
import os
from pathlib import Path

from ftd import config, environment
from ftd.errors import FtdError

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def hint(exc: OSError) -> str | None:
    """Name the setting that would have another folder; None for other errors, and files that are not ours."""
    if exc.errno not in _NOT_WRITABLE or not exc.filename:
        return None
    path = Path(os.fsdecode(exc.filename))
    with contextlib.suppress(FtdError):
        models = config.load().registry.models_dir
        for name, folder in (("FTD_HOME", environment.state_dir()), ("FTD_MODELS", models)):
            # A folder above ours is what could not be made
            if path.is_relative_to(folder) or folder.is_relative_to(path):
                return f"set {name} to a folder that can be written"
    return None
