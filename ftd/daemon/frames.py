"""Cuts the engine's byte stream into messages."""

import asyncio
from collections.abc import Callable

import msgspec

from ftd.engine import messages


class Frames(asyncio.Protocol):
    """Calls ``on_message`` with each message, ``on_end`` with the fault, if any, when the stream ends."""

    def __init__(
        self, on_message: Callable[[messages.Up], None], on_end: Callable[[str | None], None]
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        start = 0
        header = messages.HEADER
        while len(pending) - start >= header.size:
            (body_bytes,) = header.unpack_from(pending, start)
            end = start + header.size + body_bytes
            if body_bytes > messages.MAX_FRAME_BYTES:
                self._fail(f"engine sent a frame of {body_bytes} bytes")
                return
            if len(pending) < end:
                break
            try:
                message = messages.decode_up(bytes(pending[start + header.size : end]))
            except msgspec.MsgspecError as exc:
                self._fail(f"engine sent a malformed message: {exc}")
                return
            start = end
            self._on_message(message)
        del pending[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(None)

    def _fail(self, reason: str) -> None:
        self._pending.clear()
        assert self._transport is not None
        self._on_end(reason)
        self._transport.abort()
