"""The HTTP client, against the fake API and against sockets that misbehave."""

import pickle
import socket
import threading
from collections.abc import Iterator

import pytest
from fake_api import CUT, FakeApi
from ports import free_port

from ftd.address import Address, parse_address
from ftd.cli.client import Client, DaemonUnreachable, RequestFailed


@pytest.fixture
def client(api: FakeApi) -> Client:
    return Client(Address("http", "127.0.0.1", api.port))


def test_call_returns_the_decoded_answer(api: FakeApi, client: Client) -> None:
    api.answers["POST /api/x"] = lambda body: {"got": body}
    assert client.call("POST", "/api/x", {"text": "é\u2028"}) == {"got": {"text": "é\u2028"}}


def test_an_empty_answer_is_none(api: FakeApi, client: Client) -> None:
    api.answers["DELETE /api/x"] = None
    assert client.call("DELETE", "/api/x", {}) is None


def test_an_error_carries_message_hint_and_status(api: FakeApi, client: Client) -> None:
    api.answers["POST /api/x"] = (503, {"error": "server busy", "hint": "wait"})
    with pytest.raises(RequestFailed) as caught:
        client.call("POST", "/api/x", {})
    assert (caught.value.message, caught.value.hint, caught.value.status) == ("server busy", "wait", 503)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.message, again.hint, again.status) == ("server busy", "wait", 503)


def test_a_stream_yields_objects_and_raises_a_late_error(api: FakeApi, client: Client) -> None:
    api.answers["POST /api/x"] = [{"a": 1}, {"a": 2}, {"error": "it broke"}]
    items = client.stream("/api/x", {})
    assert [next(items), next(items)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(RequestFailed, match="it broke"):
        next(items)


def test_a_refused_stream_raises_its_status(api: FakeApi, client: Client) -> None:
    api.answers["POST /api/x"] = (404, {"error": "model 'x' not found"})
    with pytest.raises(RequestFailed) as caught:
        list(client.stream("/api/x", {}))
    assert caught.value.status == 404


def test_a_stream_that_is_cut_is_not_taken_for_its_end(api: FakeApi, client: Client) -> None:
    api.answers["POST /api/x"] = [{"a": 1}, CUT]
    with pytest.raises(DaemonUnreachable, match="could not reach the daemon"):
        list(client.stream("/api/x", {}))


@pytest.fixture
def raw_server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def answer(listener: socket.socket, data: bytes) -> Client:
    """Send ``data`` to whoever connects next."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return Client(Address("http", "127.0.0.1", listener.getsockname()[1]))


@pytest.mark.parametrize(
    "data", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>"]
)
def test_what_is_no_daemon_is_unreachable(raw_server: socket.socket, data: bytes) -> None:
    with pytest.raises(DaemonUnreachable):
        answer(raw_server, data).call("GET", "/api/tags")


@pytest.mark.parametrize("body", [b"[1]", b"nope", b"\xff"])
def test_an_answer_that_is_no_json_object_is_refused(raw_server: socket.socket, body: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with pytest.raises(DaemonUnreachable, match="the daemon's answer is not"):
        answer(raw_server, data).call("GET", "/api/tags")


def test_an_error_without_json_shows_its_text(raw_server: socket.socket) -> None:
    data = b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\nbad gw"
    with pytest.raises(
        RequestFailed, match=r"no daemon answers at http://127\.0\.0\.1:\d+, but bad gw: HTTP status 502"
    ):
        answer(raw_server, data).call("GET", "/api/tags")


def test_nobody_listens() -> None:
    port = free_port()
    client = Client(Address("http", "127.0.0.1", port))
    assert not client.is_up()
    with pytest.raises(DaemonUnreachable) as caught:
        client.call("GET", "/api/tags")
    assert (
        caught.value.message == f"could not reach the daemon at http://127.0.0.1:{port}: Connection refused"
    )
    assert caught.value.hint == "ftd serve"


def test_an_address_of_all_interfaces_is_called_on_loopback(api: FakeApi) -> None:
    assert Client(parse_address(f"0.0.0.0:{api.port}")).is_up()


def test_the_path_of_the_address_goes_before_every_path(api: FakeApi) -> None:
    api.answers["GET /proxy/api/tags"] = {"models": []}
    assert Client(parse_address(f"http://127.0.0.1:{api.port}/proxy/")).call("GET", "/api/tags") == {
        "models": []
    }
