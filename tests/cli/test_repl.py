"""The interactive chat at a pseudo-terminal, against the fake API."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_api import HANG, TIMEOUT_S, FakeApi, model
from terminal import Terminal

Start = Callable[..., Terminal]


def reply(text: str) -> list[dict[str, object]]:
    return [{"message": {"role": "assistant", "content": text}}, {"message": {"content": ""}, "done": True}]


@pytest.fixture
def chatty(api: FakeApi) -> FakeApi:
    api.answers["POST /api/generate"] = {"done": True, "done_reason": "load"}
    api.answers["POST /api/chat"] = lambda body: reply(f"answer to {body['messages'][-1]['content']!r}")
    api.answers["GET /api/tags"] = {"models": [model("m:latest")]}
    return api


def plain(text: str) -> str:
    """Return terminal output without escape codes."""
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])", "", text)


def ask(shell: Terminal, line: str, until: str) -> str:
    shell.wait_for(">>> ")
    shell.type(line + "\r")
    return plain(shell.wait_for(until))


def test_a_chat_loads_the_model_answers_and_ends(terminal: Start, chatty: FakeApi) -> None:
    shell = terminal("run", "m")
    ask(shell, "hello", "answer to 'hello'")
    ask(shell, "again", "answer to 'again'")
    shell.wait_for(">>> ")
    shell.type("/bye\r")
    assert shell.end()[1] == 0
    assert chatty.bodies("/api/generate")[0]["prompt"] == ""
    roles = [message["role"] for message in chatty.bodies("/api/chat")[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_the_placeholder_and_ctrl_d(terminal: Start, chatty: FakeApi) -> None:
    shell = terminal("run", "m")
    shell.wait_for("Send a message (/? for help)")
    shell.type("\x04")
    assert shell.end()[1] == 0


def test_ctrl_c_on_an_empty_line_says_how_to_leave(terminal: Start, chatty: FakeApi) -> None:
    shell = terminal("run", "m")
    shell.wait_for("Send a message")
    shell.type("\x03")
    shell.wait_for("Use Ctrl + d or /bye to exit.")
    shell.type("/bye\r")
    assert shell.end()[1] == 0


def test_several_lines_in_quotes_are_one_message(terminal: Start, chatty: FakeApi) -> None:
    shell = terminal("run", "m")
    shell.wait_for(">>> ")
    shell.type('"""one\r')
    shell.wait_for("...")
    shell.type('two"""\r')
    assert "Send a message" not in plain(shell.wait_for(r"answer to 'one\ntwo'"))
    assert chatty.bodies("/api/chat")[0]["messages"][0]["content"] == "one\ntwo"


def test_an_interrupted_answer_keeps_the_chat(terminal: Start, chatty: FakeApi) -> None:
    chatty.answers["POST /api/chat"] = [*reply("begun")[:1], HANG]
    shell = terminal("run", "--nowordwrap", "m")
    ask(shell, "hello", "begun")
    shell.process.send_signal(signal.SIGINT)
    assert chatty.disconnected.wait(TIMEOUT_S)
    chatty.answers["POST /api/chat"] = reply("next")
    ask(shell, "more", "next")
    contents = [message["content"] for message in chatty.bodies("/api/chat")[1]["messages"]]
    assert contents == ["hello", "begun", "more"]


def test_a_failure_is_shown_and_the_chat_goes_on(terminal: Start, chatty: FakeApi) -> None:
    chatty.answers["POST /api/chat"] = (503, {"error": "server busy"})
    shell = terminal("run", "m")
    ask(shell, "hello", "error: server busy")
    shell.wait_for(">>> ")
    shell.type("/bye\r")
    assert shell.end()[1] == 0


def test_history_is_kept_in_the_state_folder_unless_unwanted(
    terminal: Start, chatty: FakeApi, environment: dict[str, str]
) -> None:
    path = Path(environment["FTD_HOME"]) / "history"
    for extra, kept in (({"FTD_NOHISTORY": "1"}, False), ({}, True)):
        shell = terminal("run", "m", env=extra)
        ask(shell, "remember me", "answer to")
        shell.wait_for(">>> ")
        shell.type("/bye\r")
        shell.end()
        assert path.exists() is kept
    assert "+remember me" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_place_for_history_there_is_a_chat(terminal: Start, chatty: FakeApi) -> None:
    """As in a home folder that cannot be written."""
    shell = terminal("run", "m", env={"FTD_HOME": "/proc/ftd"})
    assert "note: what you type is not kept: " in plain(shell.wait_for(">>> "))
    shell.type("hello\r")
    shell.wait_for("answer to 'hello'")
    shell.wait_for(">>> ")
    shell.type("/bye\r")
    assert shell.end()[1] == 0


def test_settings_reach_the_request(terminal: Start, chatty: FakeApi) -> None:
    shell = terminal("run", "m")
    ask(shell, "/set parameter seed 7", "Set parameter 'seed' to '7'")
    ask(shell, "/set system Be kind.", "Set system message.")
    ask(shell, "hello", "answer to")
    ask(shell, "/show parameters", "User defined parameters:")
    body = chatty.bodies("/api/chat")[0]
    assert body["options"] == {"seed": 7}
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/?", "Available Commands:"),
        ("/? shortcuts", "Available keyboard shortcuts:"),
        ("/help set", "/set parameter ..."),
        ("/show", "/show modelfile"),
        ("/show license", "No license was specified for this model."),
        ("/show system", "No system message was specified for this model."),
        ("/show template", "No prompt template was specified for this model."),
        ("/show parameters", "No additional parameters were specified for this model."),
        ("/show info", "architecture    llama"),
        ("/list", "8eeb52dfb3bb"),
        ("/clear", "Cleared session context"),
        ("/nonsense", "Unknown command '/nonsense'. Type /? for help"),
        ("/load", "/load <modelname>"),
        ("/save", "/save <modelname>"),
    ],
)
def test_commands_answer_as_in_ollama(run_line: Callable[[str], str], line: str, shown: str) -> None:
    assert shown in run_line(line)


@pytest.fixture
def run_line(chatty: FakeApi, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Run one line through the REPL in this process and return what it printed."""
    from ftd.address import Address
    from ftd.cli import repl
    from ftd.cli.client import Client
    from ftd.cli.session import Session

    session = Session(client=Client(Address("http", "127.0.0.1", chatty.port)), model="m")
    lines: list[str] = []

    class Reader:
        keep_history = False

        def read(self, prompt: str, placeholder: str = "") -> str:
            if not lines:
                raise EOFError
            return lines.pop(0)

    def run(line: str) -> str:
        lines.append(line)
        repl.run(session, Reader())
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def test_save_builds_on_the_model_with_what_was_set(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    chatty.answers["POST /api/create"] = [{"status": "success"}]
    for line in ("/set system Be kind.", "/set parameter top_k 5", "hello"):
        run_line(line)
    assert "Created new model 'kind'" in run_line("/save kind")
    assert chatty.bodies("/api/create") == [
        {
            "model": "kind",
            "from": "m",
            "system": "Be kind.",
            "parameters": {"top_k": 5},
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "answer to 'hello'"},
            ],
        }
    ]


def test_save_of_a_loaded_session_keeps_what_it_began_with(
    run_line: Callable[[str], str], chatty: FakeApi
) -> None:
    """The daemon puts a model's own messages in front of the client's: ours must not say them twice."""
    shown = chatty.answers["POST /api/show"]
    texts: list[dict[str, str]] = []
    chatty.answers["POST /api/show"] = lambda body: shown | {"messages": list(texts)}

    def create(body: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
        texts[:] = body["messages"]
        return [{"status": "success"}]

    chatty.answers["POST /api/create"] = create
    run_line("one")
    run_line("/save kept")
    run_line("/load kept")
    for line in ("two", "/save kept", "three", "/save kept"):
        run_line(line)
        assert [m["content"] for m in chatty.bodies("/api/chat")[-1]["messages"]] in (["two"], ["three"])
    assert [m["content"] for m in texts if m["role"] == "user"] == ["one", "two", "three"]


def test_thinking_does_not_follow_to_a_model_that_cannot(
    run_line: Callable[[str], str], chatty: FakeApi
) -> None:
    run_line("/set think")
    chatty.answers["POST /api/show"] = {"capabilities": ["completion"]}
    assert 'warning: model "other" does not support thinking output' in run_line("/load other")
    run_line("hello")
    assert "think" not in chatty.bodies("/api/chat")[-1]


def test_save_under_a_bad_name(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    chatty.answers["POST /api/create"] = (400, {"error": "invalid model name"})
    assert "error: The model name '///' is invalid" in run_line("/save ///")


def test_load_changes_the_model_and_starts_anew(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    run_line("hello")
    assert "Loading model 'other'" in run_line("/load other")
    run_line("again")
    body = chatty.bodies("/api/chat")[-1]
    assert body["model"] == "other" and len(body["messages"]) == 1


def test_load_of_a_missing_model_keeps_the_session(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    run_line("hello")
    chatty.answers["POST /api/show"] = (404, {"error": "model 'other' not found"})
    assert "Couldn't find model 'other'" in run_line("/load other")
    run_line("again")
    body = chatty.bodies("/api/chat")[-1]
    assert body["model"] == "m" and len(body["messages"]) == 3


def test_clear_keeps_the_system_message(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    for line in ("/set system Be kind.", "hello", "/clear", "again"):
        run_line(line)
    assert [m["role"] for m in chatty.bodies("/api/chat")[-1]["messages"]] == ["system", "user"]


def test_a_line_that_looks_like_a_path_is_a_message(run_line: Callable[[str], str], chatty: FakeApi) -> None:
    run_line("/etc/passwd is what?")
    assert len(chatty.bodies("/api/chat")) == 1
