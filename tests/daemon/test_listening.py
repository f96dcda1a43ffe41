"""The daemon's socket: others may connect before anybody accepts; a taken address says who has it."""

import socket

import pytest

from ftd.daemon.listening import listen
from ftd.errors import Conflict, InvalidOption


def test_who_connects_waits_until_somebody_accepts() -> None:
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()[:2], 5) as client:
        client.sendall(b"early")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(5) == b"early"


def test_without_a_host_it_listens_everywhere() -> None:
    with listen("0.0.0.0:0") as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_taken_address_and_one_that_is_none() -> None:
    with listen("127.0.0.1:0") as listener, pytest.raises(Conflict, match="the address is in use"):
        listener.settimeout(0)
        listen(f"127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(InvalidOption, match="cannot listen with https"):
        listen("https://127.0.0.1:1")
