"""``ftd bench bandwidth``: how fast this machine moves weights, measured in a process of its own."""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from ftd import config, environment
from ftd.cli import output
from ftd.errors import EngineError

NAME = "bandwidth"
COMMAND = environment.module_command("ftd.engine.ceilings")


def run(options: argparse.Namespace) -> int:
    """Print the rates as a table or as JSON; exit code 1 after those that came before a failure."""
    blob = largest_blob(config.load().registry.models_dir)
    found = _measured([*COMMAND, *([] if blob is None else [str(blob)])])
    if options.json:
        output.print_json(found)
    else:
        print(format_table(found["rows"]))
    if "error" in found:
        raise EngineError(found["error"], found["hint"])
    if blob is None:
        output.note("the store has no model to read from the disk")
    return 0


def largest_blob(folder: Path) -> Path | None:
    """Return the largest file of a store, None if there is none."""
    blobs = [path for path in folder.glob("blobs/sha256-*") if path.is_file()]
    return max(blobs, key=lambda path: path.stat().st_size, default=None)


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return rates for people, one row each."""
    width = max((len(row["name"]) for row in rows), default=0)
    return "\n".join(
        f"{row['name']:<{width}} {row['bytes_per_s'] / 1e9:8.2f} GB/s  {row['note']}".rstrip() for row in rows
    )


def _measured(command: list[str]) -> dict[str, Any]:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(result.stdout)
    except ValueError as exc:
        last = result.stderr.strip().splitlines()[-1:]
        raise EngineError("; ".join(last) or f"measuring ended with code {result.returncode}") from exc
    return found
