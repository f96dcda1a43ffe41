"""A conversation's requests, against the fake API."""

import pytest
from fake_api import CUT, FakeApi

from ftd.address import Address
from ftd.cli.client import Client, DaemonUnreachable, RequestFailed
from ftd.cli.session import Session


def reply(text: str) -> list[dict[str, object]]:
    return [
        {"message": {"role": "assistant", "content": text}, "done": False},
        {"message": {"role": "assistant", "content": ""}, "done": True, "eval_count": 1},
    ]


@pytest.fixture
def session(api: FakeApi) -> Session:
    return Session(client=Client(Address("http", "127.0.0.1", api.port)), model="m")


def test_chat_sends_all_messages_and_remembers_the_answer(session: Session, api: FakeApi) -> None:
    api.answers["POST /api/chat"] = lambda body: reply(f"answer {len(body['messages'])}")
    session.chat("one")
    session.chat("two")
    assert [message["content"] for message in api.bodies("/api/chat")[1]["messages"]] == [
        "one",
        "answer 1",
        "two",
    ]
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2


def test_a_failed_message_is_forgotten(session: Session, api: FakeApi) -> None:
    api.answers["POST /api/chat"] = (500, {"error": "no"})
    with pytest.raises(RequestFailed):
        session.chat("one")
    api.answers["POST /api/chat"] = [*reply("x")[:1], CUT]
    with pytest.raises(DaemonUnreachable):
        session.chat("one")
    assert session.messages == []


def test_an_error_in_mid_answer_starts_a_line(
    session: Session, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.answers["POST /api/chat"] = [*reply("half an ans")[:1], {"error": "engine died"}]
    with pytest.raises(RequestFailed, match="engine died"):
        session.chat("one")
    assert capsys.readouterr().out == "half an ans\n\n"
    api.answers["POST /api/chat"] = [{"error": "engine died"}]
    with pytest.raises(RequestFailed, match="engine died"):
        session.chat("one")
    assert capsys.readouterr().out == ""


def test_thinking_is_remembered_beside_the_answer(session: Session, api: FakeApi) -> None:
    api.answers["POST /api/chat"] = [{"message": {"content": "", "thinking": "hm"}}, *reply("yes")]
    session.chat("one")
    assert session.messages[1] == {"role": "assistant", "content": "yes", "thinking": "hm"}


def test_options_and_format_go_with_every_message(session: Session, api: FakeApi) -> None:
    api.answers["POST /api/chat"] = reply("x")
    session.options, session.format, session.keep_alive = {"seed": 1}, "json", -1.0
    session.chat("one")
    body = api.bodies("/api/chat")[0]
    assert (body["options"], body["format"], body["keep_alive"]) == ({"seed": 1}, "json", -1.0)
    assert "think" not in body


def test_the_last_system_message_counts(session: Session) -> None:
    assert session.system == ""
    session.messages = [{"role": "system", "content": text} for text in ("a", "b")]
    assert session.system == "b"
