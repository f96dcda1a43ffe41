"""Connections of the commands: which kind an address gets, and that those over TLS look at certificates."""

import http.client
import socket
import ssl

import pytest

from ftd.address import Address
from ftd.cli.connection import FAILURES, connection, reason


def test_http_is_plain_and_asks_the_named_host() -> None:
    link = connection(Address("http", "", 8080), "127.0.0.1", 2.5)
    assert type(link) is http.client.HTTPConnection
    assert (link.host, link.port, link.timeout) == ("127.0.0.1", 8080, 2.5)


def test_https_believes_no_certificate_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[ssl.SSLContext] = []

    def wrap(context: ssl.SSLContext, *rest: object, **named: object) -> socket.socket:
        contexts.append(context)
        raise ssl.SSLCertVerificationError("nobody signed it")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap)
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = connection(Address("https", "localhost", server.getsockname()[1]), "127.0.0.1", 5)
        with pytest.raises(FAILURES, match="nobody signed it"):
            link.connect()
        link.close()
    assert [(each.verify_mode, each.check_hostname) for each in contexts] == [(ssl.CERT_REQUIRED, True)]


def test_an_answer_that_is_no_http_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = connection(Address("http", "127.0.0.1", server.getsockname()[1]), "127.0.0.1", 5)
        link.request("GET", "/")
        accepted, _ = server.accept()
        with accepted:
            accepted.recv(1 << 12)
            accepted.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        with pytest.raises(FAILURES):
            link.getresponse()
        link.close()


def test_why_a_request_failed_is_said_in_words() -> None:
    assert reason(http.client.IncompleteRead(b"")) == "it ended in the middle of its answer"
    assert reason(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert reason(http.client.RemoteDisconnected("nobody answered")) == "nobody answered"
    assert reason(http.client.BadStatusLine("")) == "''" and reason(OSError()) == "OSError"
