"""``ftd pull``: fetch a model from a registry."""

import argparse

from ftd.cli import background, progress
from ftd.cli.client import Client


def run(options: argparse.Namespace) -> int:
    """Pull ``options.model``."""
    pull(background.connect(), options.model, options.insecure)
    return 0


def pull(client: Client, model: str, insecure: bool) -> None:
    """Pull ``model`` through the daemon, showing progress. Raises RequestFailed."""
    progress.show(client.stream("/api/pull", {"model": model, "insecure": insecure}), ":")
