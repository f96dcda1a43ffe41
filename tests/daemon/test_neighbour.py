"""Who has the address that a daemon wanted: other daemons, other servers, what speaks no HTTP, and nobody."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ftd.address import Address, parse_address
from ftd.daemon import neighbour
from ftd.daemon.neighbour import who_answers


@contextmanager
def answering(data: bytes | None, host: str = "127.0.0.1") -> Iterator[tuple[Address, list[bytes]]]:
    """A server that answers one connection with bytes, or with silence (None), and what it was asked."""
    asked: list[bytes] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        done = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(4096))
                if data is None:
                    done.wait(10)
                else:
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        shown = f"[{host}]" if ":" in host else host
        try:
            yield parse_address(f"{shown}:{server.getsockname()[1]}"), asked
        finally:
            done.set()
            thread.join()


def reply(body: bytes, server: str = "", status: str = "200 OK") -> bytes:
    named = f"Server: {server}\r\n" if server else ""
    return f"HTTP/1.1 {status}\r\n{named}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (reply(b'{"version":"0.13.5"}', "ftd/0.1.0"), ", by another ftd daemon (ftd/0.1.0)"),
        (reply(b'{"version":"0.5.1"}'), ", by an Ollama server (version 0.5.1)"),
        (reply(b'{"version":"1"}', "nginx"), ", by an Ollama server (version 1)"),
        (reply(b"<html>", "nginx"), ""),
        (reply(b'{"name":"x"}'), ""),
        (reply(b"[1]"), ""),
        (reply(b"null"), ""),
        (reply(b"\xff\xfe{"), ""),
        (reply(b"", status="404 Not Found"), ""),
        (b"SSH-2.0-OpenSSH_9.6\r\n", ""),
        (b"", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", ""),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n", ""),
    ],
)
def test_what_answers_is_named_as_far_as_it_says_so(data: bytes, said: str) -> None:
    with answering(data) as (address, asked):
        assert who_answers(address) == said
    assert asked[0].startswith(b"GET /api/version HTTP/1.1\r\n")


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour, "_PROBE_S", 0.05)
    with answering(None) as (address, _):
        assert who_answers(address) == ""


def test_nobody_is_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert who_answers(parse_address(f"127.0.0.1:{port}")) == ""


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_addresses_with_colons() -> None:
    try:
        with answering(reply(b'{"version":"2"}'), "::1") as (address, asked):
            assert who_answers(address) == ", by an Ollama server (version 2)"
            assert b"Host: [::1]:" in asked[0]
    except OSError:
        pytest.skip("this machine has no ::1")
