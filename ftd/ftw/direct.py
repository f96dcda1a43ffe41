"""Reads of a file that bypass the page cache where the file system lets them."""

import logging
import os
from pathlib import Path

from ftd.errors import DamagedBlob
from ftd.log import fields

log = logging.getLogger(__name__)

BLOCK_BYTES = 4096  # O_DIRECT wants offsets, lengths and addresses that are multiples of it


def open_direct(path: Path, probe: memoryview) -> int:
    """Return a descriptor for direct reads; one that reads through the page cache where they are refused.

    probe: memory that the first block is read into, because some file systems refuse only then.
    """
    if hasattr(os, "O_DIRECT"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as exc:
            log.info(fields("direct reads refused", file=path.name, reason=exc.strerror))
        else:
            try:
                os.preadv(descriptor, [probe[:BLOCK_BYTES]], 0)
                return descriptor
            except OSError as exc:
                os.close(descriptor)
                log.info(fields("direct reads refused", file=path.name, reason=exc.strerror))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_run(descriptor: int, target: memoryview, start: int, name: str) -> None:
    """Fill ``target`` with the bytes of blob ``name`` from ``start`` on. Raises DamagedBlob."""
    done = reached = 0
    while reached < len(target):
        try:
            got = os.preadv(descriptor, [target[done:]], start + done)
        except OSError as exc:
            raise DamagedBlob(f"cannot read {name} at byte {start + done}: {exc.strerror}") from exc
        if done + got <= reached:
            raise DamagedBlob(f"{name} ends at byte {start + reached}: it is shorter than its config says")
        reached = done + got
        done = reached - reached % BLOCK_BYTES  # the next direct read must start at a block
