"""The argument parser of one verb: argparse with our error texts and one help for all Python versions."""

import argparse
from typing import NoReturn

from ftd.errors import InvalidOption


class _Layout(argparse.HelpFormatter):
    """Help at a fixed width: ``-f, --file FILE`` for an option with a value, whatever the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return self._metavar_formatter(action, action.dest)(1)[0]
        names = ", ".join(action.option_strings)
        if action.nargs == 0:
            return names
        return f"{names} {self._metavar_formatter(action, action.dest.upper())(1)[0]}"


class Parser(argparse.ArgumentParser):
    """Parser of ``ftd <command>``; options may stand before, between and after the words of a prompt."""

    def __init__(self, command: str, summary: str) -> None:
        super().__init__(
            prog=f"ftd {command}",
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=_Layout,
            allow_abbrev=False,
            add_help=False,
        )
        # Python 3.14 colours help by default, which would make it differ between terminals
        self.color = False
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def error(self, message: str) -> NoReturn:
        """Raise InvalidOption in place of argparse's own exit."""
        raise InvalidOption(message, f"{self.prog} --help")

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Parse ``words``; a plain ``--think`` means ``--think=true`` and takes no word of the prompt."""
        end = words.index("--") if "--" in words else len(words)
        ours = ["--think=true" if word == "--think" else word for word in words[:end]]
        return self.parse_intermixed_args(ours + words[end:])
