"""Reading what a person types: editing and history by prompt_toolkit, ``\"\"\"`` for more than one line.

>>> one line
>>> \"\"\"several
... lines\"\"\"
"""

from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth

from ftd import environment
from ftd.cli import output

PROMPT = ">>> "
CONTINUATION = "... "
PLACEHOLDER = "Send a message (/? for help)"
QUOTE = '"""'
HISTORY_NAME = "history"


class Lines:
    """The terminal of the REPL; ``keep_history`` may be changed at any time."""

    def __init__(self, *, keep_history: bool) -> None:
        self._file_history: History | None = None
        self._no_history = InMemoryHistory()
        self.keep_history = keep_history
        depth = None if environment.wants_color() else ColorDepth.DEPTH_1_BIT
        self._session: PromptSession[str] = PromptSession(key_bindings=_bindings(), color_depth=depth)

    def read(self, prompt: str, placeholder: str = "") -> str:
        """Return one line; raise EOFError at the end of input, KeyboardInterrupt on Ctrl-C."""
        history: History = self._no_history
        if self.keep_history:
            if self._file_history is None:
                self._file_history = _file_history()
            history = self._file_history
        if self._session.history is not history:
            self._session = PromptSession(
                history=history,
                key_bindings=self._session.key_bindings,
                color_depth=self._session.color_depth,
            )
        # An empty one too: None would leave what the last prompt had
        shown = FormattedText([("fg:ansibrightblack", placeholder)])
        return self._session.prompt(prompt, placeholder=shown)


def _file_history() -> History:
    """Return the history of earlier chats; where it cannot be written, one that ends with this chat."""
    path = environment.state_dir() / HISTORY_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.open("ab").close()
    except OSError as exc:
        output.note(f"note: what you type is not kept: {exc.strerror}: {exc.filename}")
        return InMemoryHistory()
    return FileHistory(str(path))


def read_message(read: Callable[[str, str], str]) -> str:
    """Read one message: a line, or what stands between ``\"\"\"`` over several.

    ``read(prompt, placeholder)`` returns a line. A quote may follow a command, as in ``/set system \"\"\"``.
    Raises EOFError, KeyboardInterrupt.
    """
    line = read(PROMPT, PLACEHOLDER)
    head, opened, rest = line.partition(QUOTE)
    if not opened or (head and not head.startswith("/")):
        return line
    text = rest
    while not text.rstrip().endswith(QUOTE):
        text += "\n" + read(CONTINUATION, "")
    return head + text.rstrip().removesuffix(QUOTE)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return bindings
