"""The engine's end of the socket, driven by frames typed byte for byte on the other end."""

import socket
import struct
from collections.abc import Iterator

import pytest

from ftd.engine import messages
from ftd.engine.channel import Channel, Disconnected
from ftd.engine.messages import Cancel, Generate, GetStats, Progress, Unload
from ftd.errors import EngineError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel and the daemon's end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_frames_arrive_whole_and_in_order_however_they_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    sent = [GetStats(), Generate(request_id=1, ids=list(range(40000))), Cancel(request_id=1), Unload()]
    data = b"".join(messages.encode(message) for message in sent)
    for start in range(0, 40, 3):
        theirs.sendall(data[start : start + 3])
    theirs.sendall(data[42:])
    assert [channel.wait() for _ in sent] == sent


def test_poll_does_not_wait(ends: tuple[Channel, socket.socket]) -> None:
    assert ends[0].poll() is None


def test_sent_messages_go_out_at_flush_as_frames(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    channel.send(Progress(completed_bytes=1, total_bytes=2))
    channel.send(Progress(completed_bytes=2, total_bytes=2))
    channel.flush()
    first = b"\x83\xa4type\xa8progress\xafcompleted_bytes\x01\xabtotal_bytes\x02"
    frame = struct.pack("<I", len(first)) + first
    assert theirs.recv(1000) == frame + frame.replace(b"bytes\x01", b"bytes\x02")


def test_the_end_of_the_stream_is_met_by_every_later_call(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.sendall(messages.encode(GetStats())[:-1])
    theirs.close()
    for _ in range(2):
        with pytest.raises(Disconnected):
            channel.wait()
    with pytest.raises(Disconnected):
        channel.poll()
    assert channel.is_closed


def test_flush_to_a_closed_socket_says_disconnected(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.close()
    with pytest.raises(Disconnected):
        channel.wait()
    channel.send(Progress(completed_bytes=1, total_bytes=2))
    with pytest.raises(Disconnected):
        channel.flush()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff\xff\xff", "exceeds"),
        (b"\x01\x00\x00\x00\xc1", "does not decode"),
        (b"\x0b\x00\x00\x00\x81\xa4type\xa4fly!", "does not decode"),
    ],
)
def test_frames_that_lie_end_the_channel(
    ends: tuple[Channel, socket.socket], data: bytes, words: str
) -> None:
    channel, theirs = ends
    theirs.sendall(data)
    with pytest.raises(EngineError, match=words):
        channel.wait()
