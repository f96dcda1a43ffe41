"""The interactive chat: messages go to the model, lines that start with ``/`` are commands."""

from collections.abc import Callable
from typing import Protocol

from ftd import config
from ftd.cli import lines, output, replset, show
from ftd.cli.client import RequestFailed
from ftd.cli.list import table
from ftd.cli.session import Session, drop_think

HELP = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /list           List models
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message.
"""
HELP_SHOW = """\
Available Commands:
  /show info         Show details for this model
  /show license      Show model license
  /show modelfile    Show Modelfile for this model
  /show parameters   Show parameters for this model
  /show system       Show system message
  /show template     Show prompt template
"""
HELP_SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a            Move to the beginning of the line (Home)
  Ctrl + e            Move to the end of the line (End)
   Alt + b            Move back (left) one word
   Alt + f            Move forward (right) one word
  Ctrl + k            Delete the sentence after the cursor
  Ctrl + u            Delete the sentence before the cursor
  Ctrl + w            Delete the word before the cursor

  Ctrl + l            Clear the screen
  Ctrl + g            Edit the message in an external editor
  Ctrl + c            Stop the model from responding
  Ctrl + d            Exit ftd (/bye)
"""
_EMPTY = {
    "license": "No license was specified for this model.",
    "modelfile": "No Modelfile was specified for this model.",
    "system": "No system message was specified for this model.",
    "template": "No prompt template was specified for this model.",
}


class Reader(Protocol):
    """What the REPL reads from: ``lines.Lines`` or a stand-in."""

    keep_history: bool

    def read(self, prompt: str, placeholder: str = "") -> str:
        """Return one line; raise EOFError or KeyboardInterrupt."""


def run(session: Session, reader: Reader | None = None) -> None:
    """Chat until ``/bye`` or the end of input."""
    if reader is None:
        reader = lines.Lines(keep_history=not config.load().server.no_history)
    Repl(session, reader).run()


class Repl:
    """One conversation at a terminal."""

    def __init__(self, session: Session, reader: Reader) -> None:
        self._session = session
        self._reader = reader
        self._commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/list": self._list,
            "/load": self._load,
            "/save": self._save,
            "/clear": self._clear,
            "/help": self._help,
            "/?": self._help,
        }

    def run(self) -> None:
        """Read and answer until ``/bye`` or the end of input."""
        self._print_history()
        while True:
            try:
                message = lines.read_message(self._reader.read)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("\nUse Ctrl + d or /bye to exit.")
                continue
            word = message.split(None, 1)[0] if message.strip() else ""
            if word in ("/bye", "/exit"):
                return
            try:
                self._handle(word, message)
            except RequestFailed as exc:
                output.note(f"error: {exc.message}" + (f"\nhint: {exc.hint}" if exc.hint else ""))
            except KeyboardInterrupt:
                continue

    def _handle(self, word: str, message: str) -> None:
        if not word:
            return
        command = self._commands.get(word)
        if command is not None:
            command(message.split(None, 1)[1] if len(message.split(None, 1)) > 1 else "")
        elif word.startswith("/") and "/" not in word[1:]:
            print(f"Unknown command '{word}'. Type /? for help")
        else:
            self._session.chat(message)

    def _set(self, rest: str) -> None:
        replset.apply(self._session, self._reader, rest)

    def _show(self, rest: str) -> None:
        part = rest.strip()
        shown = self._session.client.call("POST", "/api/show", {"model": self._session.model})
        if part == "info":
            print(show.overview(shown))
        elif part == "parameters":
            self._show_parameters(shown.get("parameters", ""))
        elif part == "system" and self._session.system:
            print(f"{self._session.system}\n")
        elif part in _EMPTY:
            print(shown.get(part) or _EMPTY[part])
        else:
            print(HELP_SHOW)

    def _show_parameters(self, parameters: str) -> None:
        print("Model defined parameters:")
        lines_ = parameters.splitlines() or ["No additional parameters were specified for this model."]
        print("\n".join(f"  {line}" for line in lines_))
        if self._session.options:
            print("\nUser defined parameters:")
            print("\n".join(f"  {name:<30} {value}" for name, value in self._session.options.items()))
        print()

    def _list(self, rest: str) -> None:
        print(table(self._session.client.call("GET", "/api/tags")["models"]))

    def _load(self, rest: str) -> None:
        model = rest.strip()
        if not model:
            print("Usage:\n  /load <modelname>")
            return
        print(f"Loading model '{model}'")
        session = self._session
        try:
            shown = session.client.call("POST", "/api/show", {"model": model})
        except RequestFailed as exc:
            if exc.status != 404:
                raise
            print(f"Couldn't find model '{model}'")
            return
        before = session.model, session.shown, session.messages, session.options
        session.model, session.shown, session.messages, session.options = model, shown, [], {}
        try:
            session.load()
        except RequestFailed:
            session.model, session.shown, session.messages, session.options = before
            raise
        drop_think(session)
        self._print_history()

    def _save(self, rest: str) -> None:
        name = rest.strip()
        if not name or len(name.split()) > 1:
            print("Usage:\n  /save <modelname>")
            return
        session = self._session
        body: dict[str, object] = {"model": name, "from": session.model}
        if session.system:
            body["system"] = session.system
        if session.options:
            body["parameters"] = session.options
        messages = [message for message in session.messages if message["role"] != "system"]
        if messages:
            # What is saved replaces the model's own, which the daemon puts in front of ours
            messages = [*(session.shown.get("messages") or ()), *messages]
            body["messages"] = [{"role": m["role"], "content": m["content"]} for m in messages]
        try:
            for _ in session.client.stream("/api/create", body):
                pass
        except RequestFailed as exc:
            if "invalid model name" in exc.message:
                print(f"error: The model name '{name}' is invalid")
                return
            raise
        print(f"Created new model '{name}'")
        self._take_over_saved()

    def _take_over_saved(self) -> None:
        """If the model was saved under its own name, forget what it now brings itself."""
        session = self._session
        shown = session.client.call("POST", "/api/show", {"model": session.model})
        if shown.get("messages") != session.shown.get("messages"):
            session.shown = shown
            session.messages = [message for message in session.messages if message["role"] == "system"]

    def _clear(self, rest: str) -> None:
        self._session.messages = [m for m in self._session.messages if m["role"] == "system"]
        print("Cleared session context")

    def _help(self, rest: str) -> None:
        topics = {"set": replset.HELP, "/set": replset.HELP, "show": HELP_SHOW, "/show": HELP_SHOW}
        topics |= {"shortcut": HELP_SHORTCUTS, "shortcuts": HELP_SHORTCUTS}
        print(topics.get(rest.strip(), HELP))

    def _print_history(self) -> None:
        """Print the messages that the model itself brings; the daemon puts them in front of ours."""
        for message in self._session.shown.get("messages") or ():
            prefix = lines.PROMPT if message["role"] == "user" else ""
            if message["role"] != "system":
                print(f"{prefix}{message['content']}\n")
