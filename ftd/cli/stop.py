"""``ftd stop``: unload a model."""

import argparse

from ftd.cli import background
from ftd.cli.client import Client, DaemonUnreachable, RequestFailed
from ftd.errors import ModelNotFound


def run(options: argparse.Namespace) -> int:
    """Unload ``options.model``; without a daemon nothing is loaded, so none is started."""
    missing = ModelNotFound(f'couldn\'t find model "{options.model}" to stop', "ftd ps")
    try:
        unload(background.connect(start=False), options.model)
    except DaemonUnreachable as exc:
        raise missing from exc
    except RequestFailed as exc:
        if exc.status == 404:
            raise missing from exc
        raise
    return 0


def unload(client: Client, model: str) -> None:
    """Ask the daemon to unload ``model`` when its requests have ended. Raises RequestFailed."""
    client.call("POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False})
