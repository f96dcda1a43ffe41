"""Frames of messages against bytes cut anywhere, and bytes that lie."""

import asyncio

import pytest

from ftd.daemon.frames import Frames
from ftd.engine import messages
from ftd.engine.messages import Progress, Tokens


class FakeTransport(asyncio.Transport):
    """Notes whether it was aborted."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Peer:
    """What a Frames told its owner."""

    def __init__(self) -> None:
        self.messages: list[messages.Up] = []
        self.ends: list[str | None] = []
        self.transport = FakeTransport()
        self.frames = Frames(self.messages.append, self.ends.append)
        self.frames.connection_made(self.transport)


SENT = [
    Tokens(request_id=1, ids=[7, 8]),
    Progress(completed_bytes=3, total_bytes=9),
    Tokens(request_id=2, ids=[]),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_arrive_however_the_bytes_are_cut(size: int) -> None:
    peer, data = Peer(), b"".join(messages.encode(message) for message in SENT)
    for start in range(0, len(data), size):
        peer.frames.data_received(data[start : start + size])
    assert peer.messages == SENT and peer.ends == []


def test_the_end_of_the_stream_has_no_fault() -> None:
    peer = Peer()
    peer.frames.connection_lost(None)
    assert peer.ends == [None]


def test_a_frame_too_large_is_refused_before_it_is_read() -> None:
    peer = Peer()
    peer.frames.data_received(messages.HEADER.pack(messages.MAX_FRAME_BYTES + 1))
    assert peer.ends == [f"engine sent a frame of {messages.MAX_FRAME_BYTES + 1} bytes"]
    assert peer.transport.is_aborted


def test_a_malformed_message_ends_the_stream() -> None:
    peer = Peer()
    peer.frames.data_received(messages.HEADER.pack(2) + b"\xc1\xc1")
    assert len(peer.ends) == 1 and "malformed" in str(peer.ends[0])
    assert peer.transport.is_aborted and peer.messages == []
