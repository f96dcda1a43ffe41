"""The REPL's ``/set``: what the person changes for this session."""

import json
import re
from typing import TYPE_CHECKING

from ftd.chat.options import OPTIONS, parse_parameter
from ftd.cli.session import Session, drop_think
from ftd.errors import InvalidOption

if TYPE_CHECKING:
    from ftd.cli.repl import Reader

HELP = """\
Available Commands:
  /set parameter ...     Set a parameter
  /set system <string>   Set system message
  /set history           Enable history
  /set nohistory         Disable history
  /set wordwrap          Enable wordwrap
  /set nowordwrap        Disable wordwrap
  /set format json       Enable JSON mode
  /set noformat          Disable formatting
  /set verbose           Show LLM stats
  /set quiet             Disable LLM stats
  /set think [LEVEL]     Enable thinking
  /set nothink           Disable thinking
"""
_USAGE_PARAMETER = "Usage:\n  /set parameter <name> <value>\n\nParameters: "
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"(?=\s|$)|\S+')
_LEVELS = ("high", "medium", "low", "max")


def apply(session: Session, reader: "Reader", rest: str) -> None:
    """Carry out ``/set`` with the words ``rest`` and print what was done."""
    word, _, value = rest.strip().partition(" ")
    value = value.strip()
    if word == "parameter":
        _parameter(session, value)
    elif word == "system":
        _system(session, value)
    elif word in ("history", "nohistory"):
        reader.keep_history = word == "history"
    elif word in ("wordwrap", "nowordwrap"):
        session.wordwrap = word == "wordwrap"
        print(f"Set '{word}' mode.")
    elif word in ("verbose", "quiet"):
        session.verbose = word == "verbose"
        print(f"Set '{word}' mode.")
    elif word == "format":
        if value != "json":
            print("Invalid or missing format. For 'json' mode use '/set format json'")
            return
        session.format = "json"
        print("Set format to 'json' mode.")
    elif word == "noformat":
        session.format = None
        print("Disabled format.")
    elif word in ("think", "nothink"):
        _think(session, word, value)
    elif word:
        print(f"Unknown command '/set {word}'. Type /? for help")
    else:
        print(HELP)


def _parameter(session: Session, value: str) -> None:
    name, *texts = _WORD.findall(value) or [""]
    if not texts:
        print(_USAGE_PARAMETER + " ".join(sorted(OPTIONS)))
        return
    try:
        parsed = [parse_parameter(name, _unquoted(text)) for text in texts]
    except InvalidOption as exc:
        print(f'Couldn\'t set parameter: "{exc.message}"')
        return
    session.options[name] = parsed if OPTIONS.get(name) == "strings" else parsed[0]
    print(f"Set parameter '{name}' to '{', '.join(texts)}'")


def _unquoted(text: str) -> str:
    """Return a word without its quotes; inside of them blanks and JSON's escapes (``\\n``) are allowed."""
    if len(text) < 2 or not text.startswith('"') or not text.endswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1]


def _system(session: Session, text: str) -> None:
    if not text:
        print("Usage:\n  /set system <string>")
        return
    if session.messages and session.messages[-1]["role"] == "system":
        session.messages.pop()
    session.messages.append({"role": "system", "content": text})
    print("Set system message.")


def _think(session: Session, word: str, level: str) -> None:
    if level and (word == "nothink" or level not in _LEVELS):
        print(f"Invalid thinking level: {level}. Use one of {', '.join(_LEVELS)}")
        return
    session.think = level or word == "think"
    drop_think(session)
    if session.think is not None:
        print(f"Set 'think' mode to '{level}'." if level else f"Set '{word}' mode.")
