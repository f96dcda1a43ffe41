"""One flag of ``ftd serve`` for each setting: FTD_KEEP_ALIVE is ``--keep-alive``."""

import argparse
from typing import Any

from ftd import config
from ftd.cli.usage import Parser


def add(parser: Parser) -> None:
    """Declare the flags."""
    for setting in config.SETTINGS:
        help_text = f"{setting.help} [{setting.variable}]"
        parser.add_argument(setting.flag, dest=setting.name, metavar="VALUE", help=help_text)


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given, typed, by field name; raise InvalidOption that names the flag."""
    given: dict[str, Any] = {}
    for setting in config.SETTINGS:
        text = getattr(options, setting.name)
        if text is not None:
            given[setting.name] = setting.read(text, setting.flag)
    return given
