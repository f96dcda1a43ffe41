"""One flag of ``ftd serve`` for each setting: FTD_KEEP_ALIVE is ``--keep-alive``."""

import argparse
from typing import Any

from ftd import config
from ftd.cli.usage import Parser
from ftd.errors import InvalidOption


def add(parser: Parser) -> None:
    """Declare the flags."""
    for setting in config.SETTINGS:
        help_text = f"{setting.help} [{setting.variable}]"
        parser.add_argument(_flag(setting), dest=setting.name, metavar="VALUE", help=help_text)


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given, typed, by field name; raise InvalidOption that names the flag."""
    given: dict[str, Any] = {}
    for setting in config.SETTINGS:
        text = getattr(options, setting.name)
        if text is None:
            continue
        try:
            given[setting.name] = setting.parse(text)
        except InvalidOption as exc:
            raise InvalidOption(f"{_flag(setting)}: {exc.message}", exc.hint) from exc
    return given


def _flag(setting: config.Setting) -> str:
    return "--" + setting.variable.removeprefix("FTD_").lower().replace("_", "-")
