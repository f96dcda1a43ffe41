"""``ftd cp``: give a model a second name."""

import argparse

from ftd.cli import background


def run(options: argparse.Namespace) -> int:
    """Copy the manifest of ``options.source`` to ``options.destination``."""
    body = {"source": options.source, "destination": options.destination}
    background.connect().call("POST", "/api/copy", body)
    print(f"copied '{options.source}' to '{options.destination}'")
    return 0
