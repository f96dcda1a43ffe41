"""``ftd run``: chat with a model at a terminal, or ask it one thing from arguments or a pipe."""

import argparse
import importlib
import sys

from ftd.cli import background, output, wishes
from ftd.cli.client import Client, RequestFailed
from ftd.errors import InvalidOption


def run(options: argparse.Namespace) -> int:
    """Run ``options.model``, which is pulled if it is not here."""
    format_, keep_alive = wishes.parse_format(options.format), wishes.parse_keep_alive(options.keepalive)
    prompt = _prompt(options.prompt)
    client = background.connect(meanwhile="ftd.cli.session")
    from ftd.cli import session  # as above: not before a daemon starts

    conversation = session.Session(
        client=client,
        model=options.model,
        shown=show_or_pull(client, options.model, options.insecure),
        format=format_,
        keep_alive=keep_alive,
        think=wishes.parse_think(options.think),
        hide_thinking=options.hidethinking,
        wordwrap=not options.nowordwrap,
        verbose=options.verbose,
        options={} if options.device is None else {"device": options.device},
    )
    session.warn_if_not_thinking(conversation)
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


def show_or_pull(client: Client, model: str, insecure: bool) -> dict[str, object]:
    """Return what ``/api/show`` says of ``model``, pulled first if it is missing. Raises RequestFailed."""
    for attempt in ("first", "after pull"):
        try:
            shown: dict[str, object] = client.call("POST", "/api/show", {"model": model})
            return shown
        except RequestFailed as exc:
            if exc.status != 404 or attempt == "after pull":
                raise
            from ftd.cli.pull import pull  # with its bars; most models are here

            output.note(f"{exc.message}: pulling it")
            pull(client, model, insecure)
    raise AssertionError("unreachable")


def _prompt(words: list[str]) -> str:
    """Join what came through a pipe and the words of the command line with a blank."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    return " ".join(part for part in (piped, *words) if part)
