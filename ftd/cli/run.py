"""``ftd run``: chat with a model at a terminal, or ask it one thing from arguments or a pipe."""

import argparse
import importlib
import os
import sys

from ftd.cli import background, wishes
from ftd.errors import InvalidOption, InvalidRequest


def run(options: argparse.Namespace) -> int:
    """Run ``options.model``, which is pulled if it is not here."""
    format_, keep_alive = wishes.parse_format(options.format), wishes.parse_keep_alive(options.keepalive)
    if options.model.startswith(("/", "./", "../")) or options.model.lower().endswith(".gguf"):
        _refuse_file(options.model)
    prompt = _prompt(options.prompt)
    client = background.connect(meanwhile="ftd.cli.session")
    from ftd.cli import session  # imported while a daemon starts, if none ran

    conversation = session.Session(
        client=client,
        model=options.model,
        shown=session.show_or_pull(client, options.model, options.insecure),
        format=format_,
        keep_alive=keep_alive,
        think=wishes.parse_think(options.think),
        hide_thinking=options.hidethinking,
        wordwrap=not options.nowordwrap,
        verbose=options.verbose,
        options={} if options.device is None else {"device": options.device},
    )
    session.drop_think(conversation)
    capabilities = conversation.capabilities
    if "embedding" in capabilities and "completion" not in capabilities:
        if not prompt:
            raise InvalidOption(
                "embedding models require input text", f'ftd run {options.model} "your text here"'
            )
        conversation.embed(prompt, options.dimensions)
    elif prompt:
        conversation.generate(prompt)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        conversation.load()
        # A line editor takes as long to import as all else together
        importlib.import_module("ftd.cli.repl").run(conversation)
    else:
        conversation.load()
    return 0


def _refuse_file(name: str) -> None:
    """Raise InvalidRequest if a file or folder has this name."""
    path = os.path.realpath(name)
    if os.path.exists(path):
        raise InvalidRequest(
            f"a file is no model yet: {name}", f"make one of it: echo 'FROM {path}' | ftd create NAME -f -"
        )


def _prompt(words: list[str]) -> str:
    """Join what came through a pipe and the words of the command line with a blank."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    return " ".join(part for part in (piped, *words) if part)
