"""What was measured of a machine's split of missing experts, kept for the next load.

    <user's cache>/ftd/experts.json     {key: [points of expert_split]}

A key names all that the times depend on: version, card, processor, threads, format and shape of the experts.
The file is a cache: one that cannot be read is measured anew, one that cannot be written is a warning.
"""

import logging
import math
import os
import tempfile
from pathlib import Path

import appdirs
import msgspec

from ftd import log
from ftd.kernels.expert_split import Point

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
MAX_KEYS = 64


def path() -> Path:
    """Return where the file is, for this user."""
    return Path(appdirs.user_cache_dir("ftd")) / "experts.json"


def read(key: str, max_misses: int) -> list[Point] | None:
    """Return what is kept under ``key``; None if there is nothing that can be used."""
    points = _read().get(key)
    if not points or not all(_is_possible(point, max_misses) for point in points):
        return None
    order = [(point.tokens, point.misses) for point in points]
    return points if order == sorted(set(order)) else None


def write(key: str, points: list[Point]) -> None:
    """Keep ``points`` under ``key``, whole or not at all; the keys written longest ago make room."""
    kept = _read()
    kept.pop(key, None)
    kept[key] = points
    for old in list(kept)[:-MAX_KEYS]:
        del kept[old]
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(kept))
            Path(name).replace(target)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        logger.warning(log.fields("split of experts not kept", path=str(target), reason=exc.strerror))


def _read() -> dict[str, list[Point]]:
    file = path()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[Point]])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.MsgspecError) as exc:
        logger.warning(log.fields("split of experts not read", path=str(file), reason=str(exc)[:200]))
        return {}


def _is_possible(point: Point, max_misses: int) -> bool:
    seconds = (point.seconds, point.fetch_seconds, point.run_seconds)
    return (
        1 <= point.tokens <= 1 << 20
        and 1 <= point.misses <= max_misses
        and 0 <= point.fetched <= point.misses
        and all(math.isfinite(each) and each > 0 for each in seconds)
    )
