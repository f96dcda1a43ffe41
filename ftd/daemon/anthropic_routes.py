"""Anthropic's routes: ``/v1/messages`` and the count of its tokens."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from aiohttp import web

from ftd.api import anthropic, api_errors
from ftd.api.anthropic_frames import MessageFrames
from ftd.api.request import Event
from ftd.daemon.completion import RenderedPrompt
from ftd.daemon.responses import (
    SSE,
    joined,
    named_event,
    plain_json_response,
    plain_object_response,
    read_body,
    sse_sign,
    stream,
    whole_object,
)
from ftd.daemon.services import SERVICES
from ftd.errors import FtdError


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation in Anthropic's form."""
    wanted = await read_body(request, anthropic.parse_messages)
    frames = MessageFrames(wanted)
    completions = request.app[SERVICES].completions
    async with aclosing(completions.run(wanted, frames.begin)) as events:
        if not wanted.stream:
            collected: list[Event] = []
            async for event in events:
                assert not isinstance(event, RenderedPrompt)
                collected.append(event)
            return plain_json_response(await whole_object(collected, frames.whole) + b"\n")

        async def chunks() -> AsyncIterator[bytes]:
            async for event in events:
                assert not isinstance(event, RenderedPrompt)
                yield joined(frames.events(event), named_event)

        def failure(exc: FtdError) -> bytes:
            return named_event(api_errors.render(exc, "anthropic"))

        return await stream(request, chunks(), SSE, failure, sse_sign)


async def count_tokens(request: web.Request) -> web.Response:
    """Count the tokens of the prompt that ``/v1/messages`` would make of the same body."""
    wanted = await read_body(request, partial(anthropic.parse_messages, is_count=True))
    count = await request.app[SERVICES].completions.count(wanted)
    return plain_object_response({"input_tokens": count}, newline=True)
