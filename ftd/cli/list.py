"""``ftd list``: the models on this machine."""

import argparse
from datetime import UTC, datetime

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
        print(output.table(("name", "id", "size", "modified"), rows))
    return 0
