"""The ``ftd`` command: find the verb, load its module, turn errors into a message and an exit code.

    exit code   0 done · 1 the request failed · 2 wrong usage · 130 interrupted

Imports almost nothing, so that ``ftd --help`` answers at once. Data goes to standard output, all else to
standard error.
"""

import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from ftd.cli import commands
from ftd.errors import FtdError, InvalidOption

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# class -> exit code, looked up along the class's bases
EXIT_CODES: dict[type[BaseException], int] = {FtdError: EXIT_FAILED, InvalidOption: EXIT_USAGE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _prepare_streams()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except FtdError as exc:
        _print_error(exc.message, exc.hint)
        return next(EXIT_CODES[cls] for cls in type(exc).__mro__ if cls in EXIT_CODES)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever read our output is gone; the interpreter must not try to flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as exc:
        reason = exc.strerror or str(exc)
        _print_error(f"{reason}: {exc.filename}" if exc.filename else reason, _folder_hint(exc))
        return EXIT_FAILED


def _folder_hint(exc: OSError) -> str | None:
    hint: Callable[[OSError], str | None] = importlib.import_module("ftd.cli.folders").hint
    return hint(exc)


def _prepare_streams() -> None:
    """Make streams that were closed before the start (``<&-``) empty ones, and no character one too many.

    An answer may have any character, a terminal of ``LANG=en_US.ISO-8859-1`` has few.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the one that was closed; it stays open to the end
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _run(words: list[str]) -> int:
    name = words[0] if words else "help"
    if name in ("-h", "--help", "help"):
        if len(words) > 1 and name == "help":
            return _run([words[1], "--help"])
        print(commands.overview())
        return 0
    if name in ("-v", "--version"):
        name = "version"
    command = commands.find(name)
    if command is None:
        raise InvalidOption(f"unknown command: {name}", commands.suggestion(name))
    gc.disable()  # what is imported stays: looking for garbage in it is a tenth of a daemon's start
    try:
        options = commands.parse(command, words[1:])
        run: Callable[[object], int] = importlib.import_module(command.module).run
    finally:
        gc.enable()
    return run(options)


def _print_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
