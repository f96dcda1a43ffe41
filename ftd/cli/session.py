"""A conversation: what it is made of, and two ways to ask, one prompt (generate) or a message (chat)."""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ftd.cli import output, progress
from ftd.cli.answer import Answer, left_out, timings
from ftd.cli.client import Client, RequestFailed
from ftd.cli.pull import pull
from ftd.errors import FtdError


@dataclass(slots=True, kw_only=True)
class Session:
    """The model, what is set for it, and the messages so far.

    ``keep_alive`` and ``think`` as the API takes them, None for the model's default; ``shown`` is the
    model's answer of ``/api/show``.
    """

    client: Client
    model: str
    shown: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    format: str | dict[str, Any] | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    hide_thinking: bool = False
    wordwrap: bool = True
    verbose: bool = False

    @property
    def capabilities(self) -> list[str]:
        """What the model can do, as ``/api/show`` says."""
        return self.shown.get("capabilities") or []

    @property
    def system(self) -> str:
        """The system message in force in this session, empty for the model's own."""
        texts = [message["content"] for message in self.messages if message["role"] == "system"]
        return texts[-1] if texts else ""

    def load(self) -> None:
        """Have the model loaded, with a spinner. Raises RequestFailed."""
        body = self._body()
        body.pop("format", None)
        body.pop("think", None)
        with progress.Spinner():
            self.client.call("POST", "/api/generate", {**body, "prompt": "", "stream": False})

    def generate(self, prompt: str) -> None:
        """Print the model's answer to one prompt. Raises RequestFailed."""
        self._print(self.client.stream("/api/generate", {**self._body(), "prompt": prompt}), self._answer())

    def chat(self, content: str) -> None:
        """Print the answer to the next message and remember both, an interrupted answer as it is.

        Raises RequestFailed, and then the message is forgotten.
        """
        message = {"role": "user", "content": content}
        answer = self._answer()
        body = {**self._body(), "messages": [*self.messages, message]}
        try:
            self._print(self.client.stream("/api/chat", body), answer)
        except KeyboardInterrupt:
            if not answer.content:
                raise
            self._remember(message, answer)
            raise
        self._remember(message, answer)

    def embed(self, text: str, dimensions: int | None) -> None:
        """Print the embedding of ``text`` as one line of JSON. Raises RequestFailed."""
        body: dict[str, Any] = {"model": self.model, "input": text, "options": self.options}
        if self.keep_alive is not None:
            body["keep_alive"] = self.keep_alive
        if dimensions is not None:
            body["dimensions"] = dimensions
        print(json.dumps(self.client.call("POST", "/api/embed", body)["embeddings"][0]))

    def _remember(self, message: dict[str, Any], answer: Answer) -> None:
        reply = {"role": "assistant", "content": answer.content}
        if answer.thinking:
            reply["thinking"] = answer.thinking
        self.messages += [message, reply]

    def _answer(self) -> Answer:
        return Answer(wordwrap=self.wordwrap, hide_thinking=self.hide_thinking)

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "options": self.options}
        for name in ("format", "keep_alive", "think"):
            value = getattr(self, name)
            if value is not None:
                body[name] = value
        return body

    def _print(self, items: Iterator[dict[str, Any]], answer: Answer) -> None:
        final: dict[str, Any] = {}
        spinner = progress.Spinner()
        # closing the stream closes its connection, which aborts an interrupted answer in the daemon
        with contextlib.closing(items), spinner:  # type: ignore[type-var]
            try:
                for item in items:
                    spinner.stop()
                    message = item.get("message") or item
                    answer.add(
                        message.get("content") or message.get("response") or "", message.get("thinking") or ""
                    )
                    if item.get("done"):
                        final = item
            except KeyboardInterrupt:
                spinner.stop()
                answer.finish()
                raise
            except FtdError:
                if answer.content or answer.thinking:  # what is said of the error starts a line
                    answer.finish()
                raise
        answer.finish()
        if warning := left_out(final):
            output.note(warning)
        if self.verbose:
            print(timings(final), file=sys.stderr)


def drop_think(session: Session) -> None:
    """Leave thinking to a model that cannot, with a warning to the person, if it was asked for."""
    if session.think and session.capabilities and "thinking" not in session.capabilities:
        output.note(f'warning: model "{session.model}" does not support thinking output')
        session.think = None


def show_or_pull(client: Client, model: str, insecure: bool) -> dict[str, object]:
    """Return what ``/api/show`` says of ``model``, pulled first if it is missing. Raises RequestFailed."""
    for attempt in ("first", "after pull"):
        try:
            shown: dict[str, object] = client.call("POST", "/api/show", {"model": model})
            return shown
        except RequestFailed as exc:
            if exc.status != 404 or attempt == "after pull":
                raise
            output.note(f"{exc.message}: pulling it")
            pull(client, model, insecure)
    raise AssertionError("unreachable")
