"""``/set``: replies as in Ollama, typed by hand, and what they change."""

import pytest

from ftd.address import Address
from ftd.cli import replset
from ftd.cli.client import Client
from ftd.cli.session import Session


class FakeReader:
    keep_history = True

    def read(self, prompt: str, placeholder: str = "") -> str:
        raise EOFError


@pytest.fixture
def session() -> Session:
    return Session(
        client=Client(Address("http", "127.0.0.1", 1)),
        model="m",
        shown={"capabilities": ["completion", "thinking"]},
    )


@pytest.mark.parametrize(
    ("words", "reply", "field", "value"),
    [
        (
            "parameter temperature 0.5",
            "Set parameter 'temperature' to '0.5'",
            "options",
            {"temperature": 0.5},
        ),
        ("parameter stop a b", "Set parameter 'stop' to 'a, b'", "options", {"stop": ["a", "b"]}),
        (
            r'parameter stop "a b" "\n" "x\d" "half',
            r"""Set parameter 'stop' to '"a b", "\n", "x\d", "half'""",
            "options",
            {"stop": ["a b", "\n", r"x\d", '"half']},
        ),
        ("parameter seed x", 'Couldn\'t set parameter: "invalid int value [x]"', "options", {}),
        ("parameter nope 1", "Couldn't set parameter: \"unknown parameter 'nope'\"", "options", {}),
        ("wordwrap", "Set 'wordwrap' mode.", "wordwrap", True),
        ("nowordwrap", "Set 'nowordwrap' mode.", "wordwrap", False),
        ("verbose", "Set 'verbose' mode.", "verbose", True),
        ("quiet", "Set 'quiet' mode.", "verbose", False),
        ("format json", "Set format to 'json' mode.", "format", "json"),
        (
            "format xml",
            "Invalid or missing format. For 'json' mode use '/set format json'",
            "format",
            None,
        ),
        ("noformat", "Disabled format.", "format", None),
        ("think", "Set 'think' mode.", "think", True),
        ("think high", "Set 'think' mode to 'high'.", "think", "high"),
        ("nothink", "Set 'nothink' mode.", "think", False),
        ("think hard", "Invalid thinking level: hard. Use one of high, medium, low, max", "think", None),
        ("nonsense", "Unknown command '/set nonsense'. Type /? for help", "options", {}),
    ],
)
def test_set(
    session: Session,
    capsys: pytest.CaptureFixture[str],
    words: str,
    reply: str,
    field: str,
    value: object,
) -> None:
    replset.apply(session, FakeReader(), words)
    assert capsys.readouterr().out == reply + "\n"
    assert getattr(session, field) == value


def test_history_is_switched_in_silence(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    reader = FakeReader()
    replset.apply(session, reader, "nohistory")
    assert reader.keep_history is False
    replset.apply(session, reader, "history")
    assert reader.keep_history is True and capsys.readouterr().out == ""


def test_a_system_message_right_after_another_replaces_it(session: Session) -> None:
    for text in ("be kind", "be\nshort"):
        replset.apply(session, FakeReader(), f"system {text}")
    assert session.messages == [{"role": "system", "content": "be\nshort"}]
    session.messages.append({"role": "user", "content": "x"})
    replset.apply(session, FakeReader(), "system be loud")
    assert session.system == "be loud" and len(session.messages) == 3


def test_thinking_is_not_set_where_the_model_cannot(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon refuses a request that asks for it: every message after would fail."""
    session.shown = {"capabilities": ["completion"]}
    replset.apply(session, FakeReader(), "think")
    assert capsys.readouterr() == ("", 'warning: model "m" does not support thinking output\n')
    assert session.think is None


@pytest.mark.parametrize("words", ["", "parameter", "parameter seed", "system"])
def test_too_few_words_show_the_usage(
    session: Session, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    replset.apply(session, FakeReader(), words)
    assert capsys.readouterr().out.startswith(("Usage:", "Available Commands:"))
    assert session.options == {} and session.messages == []
