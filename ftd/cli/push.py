"""``ftd push``: send a model to a registry."""

import argparse

from ftd.cli import background, output, progress


def run(options: argparse.Namespace) -> int:
    """Push ``options.model``."""
    client = background.connect()
    body = {"model": options.model, "insecure": options.insecure}
    progress.show(client.stream("/api/push", body))
    output.note(f"\nYou can find your model at:\n\n\t{options.model}")
    return 0
