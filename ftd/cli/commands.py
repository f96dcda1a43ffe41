"""The table of commands: name, summary, module, arguments. ``--help`` and the parser both come from here.

A row names the module that runs it; the module is imported only then. ``argparse`` too is imported only when
a verb's arguments are parsed, because the overview needs none of it.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ftd.choices import DEVICES, PRECISIONS

if TYPE_CHECKING:
    import argparse

    from ftd.cli.usage import Parser


class Command(NamedTuple):
    """One verb: ``module`` has ``run(options) -> exit code``; ``add`` declares its arguments."""

    name: str
    summary: str
    module: str
    add: "Callable[[Parser], None]"
    aliases: tuple[str, ...] = ()


def _model(parser: "Parser", help_text: str = "name of the model") -> None:
    parser.add_argument("model", metavar="MODEL", help=help_text)


def _insecure(parser: "Parser") -> None:
    parser.add_argument("--insecure", action="store_true", help="reach the registry over plain HTTP")


def _device(parser: "Parser", help_text: str) -> None:
    parser.add_argument("--device", choices=DEVICES, help=help_text)


def _json(parser: "Parser") -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _serve(parser: "Parser") -> None:
    importlib.import_module("ftd.cli.flags").add(parser)


def _transfer(parser: "Parser") -> None:
    _model(parser, "name of the model: [HOST/][NAMESPACE/]MODEL[:TAG]")
    _insecure(parser)


def _run(parser: "Parser") -> None:
    _model(parser)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="*", default=[], help="ask this, print the answer and end"
    )
    parser.add_argument("--verbose", action="store_true", help="show timings after each answer")
    parser.add_argument("--format", metavar="FORMAT", help="json, or a JSON schema that answers must follow")
    parser.add_argument(
        "--keepalive", metavar="DURATION", help="how long the model stays loaded: 5m, 1h, -1s"
    )
    parser.add_argument(
        "--think",
        metavar="LEVEL",
        choices=("true", "false", "high", "medium", "low", "max"),
        help="think first: true (also plain --think), false, high, medium, low or max",
    )
    parser.add_argument("--hidethinking", action="store_true", help="think, but do not show it")
    parser.add_argument(
        "--nowordwrap", action="store_true", help="do not wrap words at the edge of the terminal"
    )
    parser.add_argument("--dimensions", metavar="N", type=int, help="length of vectors of an embedding model")
    _device(parser, "where it is loaded (default: as the daemon's FTD_DEVICE says)")
    _insecure(parser)


def _list(parser: "Parser") -> None:
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start so")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names only")
    _json(parser)


def _ps(parser: "Parser") -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print names only")
    _json(parser)


def _show(parser: "Parser") -> None:
    _model(parser)
    for part in ("license", "modelfile", "parameters", "system", "template"):
        parser.add_argument(f"--{part}", action="store_true", help=f"print the {part} only")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all metadata and tensors")
    _json(parser)


def _rm(parser: "Parser") -> None:
    parser.add_argument("models", metavar="MODEL", nargs="+", help="names of the models")


def _cp(parser: "Parser") -> None:
    parser.add_argument("source", metavar="SOURCE", help="name of the model")
    parser.add_argument("destination", metavar="DESTINATION", help="new name")


def _create(parser: "Parser") -> None:
    _model(parser, "name of the new model")
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="the Modelfile (default: ./Modelfile; -: standard input)"
    )
    parser.add_argument(
        "-q", "--quantize", metavar="FORMAT", help="quantise to this format, for example q8_0"
    )


def _registry(parser: "Parser") -> None:
    parser.add_argument(
        "action", metavar="serve", choices=("serve",), help="serve the store to other machines"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (default: 5000)")
    parser.add_argument("--root", metavar="FOLDER", help="folder of the store (default: FTD_MODELS)")


def _service(parser: "Parser") -> None:
    parser.add_argument(
        "action",
        metavar="install|uninstall|status",
        choices=("install", "uninstall", "status"),
        help="put the service in place, take it away, or say how it stands",
    )
    parser.add_argument("--enable", action="store_true", help="install: start it now and with every login")


def _bench(parser: "Parser") -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="name of the model, or bandwidth: measure the machine alone"
    )
    parser.add_argument(
        "--prompt-tokens", metavar="N", type=int, default=512, help="prompt length (default: 512)"
    )
    parser.add_argument(
        "--decode-tokens", metavar="N", type=int, default=128, help="output length (default: 128)"
    )
    parser.add_argument(
        "--threads", metavar="N", type=int, default=0, help="CPU threads (default: usable cores)"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fast", help="activations (default: fast, 8 bits)"
    )
    _device(parser, "where it is measured (default: FTD_DEVICE)")
    parser.add_argument(
        "--routing", metavar="FILE", help="record which experts are chosen; replay the file if it is there"
    )
    parser.add_argument("--text", metavar="FILE", help="record for this text (default: the model writes it)")
    parser.add_argument(
        "--slots", metavar="LIST", help="replay with so many slots: numbers or shares (default: 0.11,0.25,…)"
    )
    parser.add_argument(
        "--batch", metavar="N", type=int, default=1, help="replay N parts side by side (default: 1)"
    )
    _json(parser)


COMMANDS: tuple[Command, ...] = (
    Command("serve", "run the daemon", "ftd.cli.serve", _serve, ("start",)),
    Command("run", "chat with a model, or ask it one thing", "ftd.cli.run", _run),
    Command("pull", "fetch a model from a registry", "ftd.cli.pull", _transfer),
    Command("push", "send a model to a registry", "ftd.cli.push", _transfer),
    Command("create", "make a model from a Modelfile", "ftd.cli.create", _create),
    Command("list", "list the models on this machine", "ftd.cli.list", _list, ("ls",)),
    Command("ps", "list the models that are loaded", "ftd.cli.ps", _ps),
    Command("show", "show what a model is", "ftd.cli.show", _show),
    Command("stop", "unload a model", "ftd.cli.stop", _model),
    Command("cp", "give a model a second name", "ftd.cli.cp", _cp),
    Command("rm", "remove models", "ftd.cli.rm", _rm),
    Command("registry", "serve the store as an OCI registry", "ftd.cli.registry", _registry),
    Command("service", "run the daemon in the background, under systemd", "ftd.cli.service", _service),
    Command("bench", "measure a model on this machine", "ftd.cli.bench", _bench),
    Command("doctor", "say what works here and what it costs", "ftd.cli.doctor", _json),
    Command("env", "list every setting, its value and its source", "ftd.cli.env", _json),
    Command("version", "print the versions of client and daemon", "ftd.cli.version", _json),
)


def find(name: str) -> Command | None:
    """Return the command that ``name`` is the name or an alias of."""
    return next((command for command in COMMANDS if name == command.name or name in command.aliases), None)


def suggestion(name: str) -> str:
    """Return a hint for somebody who typed a command that does not exist."""
    difflib = importlib.import_module("difflib")
    known = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    close = difflib.get_close_matches(name, known, 1)
    return f"ftd {close[0]}" if close else "ftd --help"


def overview() -> str:
    """Return the text of ``ftd --help``."""
    lines = ["usage: ftd COMMAND [ARGUMENTS]", "", "Run language models on this machine.", "", "commands:"]
    for command in COMMANDS:
        names = ", ".join((command.name, *command.aliases))
        lines.append(f"  {names:<14}{command.summary}")
    lines += ["", "ftd COMMAND --help explains a command. Settings are listed by: ftd env"]
    return "\n".join(lines)


def parse(command: Command, words: list[str]) -> "argparse.Namespace":
    """Parse a verb's arguments; ``--help`` prints and exits, wrong usage raises InvalidOption."""
    usage = importlib.import_module("ftd.cli.usage")
    parser: Parser = usage.Parser(command.name, command.summary)
    command.add(parser)
    options: argparse.Namespace = parser.parse(words)
    return options
