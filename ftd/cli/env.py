"""``ftd env``: every setting and switch, its value, where that came from and what it means."""

import argparse
import difflib
from pathlib import Path
from typing import Any

from ftd import config, environment, units
from ftd.cli import output

# What tests and benchmarks of a checkout read
_OF_SCRIPTS = ("FTD_TEST_", "FTD_PEER")


def run(options: argparse.Namespace) -> int:
    """Print the table of settings in force."""
    rows = [*settings(config.load()), *switches()]
    if options.json:
        output.print_json(
            [dict(zip(("variable", "value", "source", "meaning"), row, strict=True)) for row in rows]
        )
    else:
        print(output.table(("variable", "value", "source", "meaning"), rows))
        file = environment.state_dir() / "config.toml"
        output.note(f'\nconfig file: {file}, where a line is such as: keep_alive = "1h"')
    known = {row[0] for row in rows}
    for name in sorted(environment.variables()):
        if name.startswith("FTD_") and name not in known and not name.startswith(_OF_SCRIPTS):
            close = difflib.get_close_matches(name, known, 1, 0.8)
            output.note(f"warning: {name} is no setting" + (f"; did you mean {close[0]}?" if close else ""))
    return 0


def settings(loaded: config.Config) -> list[tuple[str, str, str, str]]:
    """Return (variable, value, source, meaning) of every setting."""
    sections = (loaded.server, loaded.registry, loaded.engine)
    rows = []
    for setting in config.SETTINGS:
        section = next(section for section in sections if isinstance(section, setting.section))
        value = _text(setting.name, getattr(section, setting.name))
        meaning = f"{setting.help} (also {setting.ollama})" if setting.ollama else setting.help
        rows.append((setting.variable, value, loaded.sources.get(setting.name, "default"), meaning))
    return rows


def switches() -> list[tuple[str, str, str, str]]:
    """Return the same of the variables that are no settings."""
    values = environment.variables()
    shown = {name: values.get(name) or "-" for name in environment.SWITCHES}
    shown["FTD_HOME"] = str(environment.state_dir())
    return [
        (name, shown[name], name if values.get(name) else "default", meaning)
        for name, meaning in environment.SWITCHES.items()
    ]


def _text(name: str, value: Any) -> str:
    if name.endswith("_ns"):
        return "forever" if value == units.FOREVER_NS else units.format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "-"
    return str(value) if isinstance(value, Path) or value != "" else "-"
