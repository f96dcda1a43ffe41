"""``ftd list``: the models on this machine."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ftd import units
from ftd.cli import background, output


def run(options: argparse.Namespace) -> int:
    """Print the models whose names start with ``options.prefix``."""
    models = background.connect().call("GET", "/api/tags")["models"]
    prefix = options.prefix.lower()
    models = [model for model in models if model["name"].lower().startswith(prefix)]
    if options.json:
        output.print_json(models)
    elif options.quiet:
        for model in models:
            print(model["name"])
    else:
        print(table(models))
    return 0


def table(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of models as ``/api/tags`` lists them."""
    now = datetime.now(UTC)
    rows = [
        (
            model["name"],
            model["digest"][:12],
            "-" if model.get("remote_model") else units.format_bytes(model["size"]),
            units.format_age(datetime.fromisoformat(model["modified_at"]), now),
        )
        for model in models
    ]
    return output.table(("name", "id", "size", "modified"), rows)
