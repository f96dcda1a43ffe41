"""``ftd rm``: remove models."""

import argparse

from ftd.cli import background, output
from ftd.cli.client import RequestFailed
from ftd.cli.stop import unload


def run(options: argparse.Namespace) -> int:
    """Unload and delete each of ``options.models``; the first failure ends it."""
    client = background.connect()
    for model in options.models:
        try:
            unload(client, model)
        except RequestFailed as exc:
            if exc.status != 404:
                output.note(f"warning: unable to stop model '{model}': {exc.message}")
        client.call("DELETE", "/api/delete", {"model": model})
        print(f"deleted '{model}'")
    return 0
