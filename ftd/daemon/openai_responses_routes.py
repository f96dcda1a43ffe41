"""OpenAI's ``/v1/responses``."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from aiohttp import web

from ftd.api.jsontext import Fields
from ftd.api.openai_responses import parse_response
from ftd.api.openai_responses_frames import ResponseFrames
from ftd.api.request import CompletionRequest, Done, Event
from ftd.daemon.completion import RenderedPrompt
from ftd.daemon.responses import (
    SSE,
    joined,
    named_event,
    plain_json_response,
    read_body,
    sse_sign,
    stream,
    whole_object,
)
from ftd.daemon.services import SERVICES
from ftd.errors import FtdError


async def respond(request: web.Request) -> web.StreamResponse:
    """Answer a conversation made of items."""
    kept = request.app[SERVICES].kept_items

    def parse(fields: Fields) -> tuple[CompletionRequest, ResponseFrames, bool]:
        wanted = parse_response(fields, kept)
        return wanted, ResponseFrames(wanted, fields), fields.flag("store", True)

    wanted, frames, is_kept = await read_body(request, parse, "EOF")
    async with aclosing(request.app[SERVICES].completions.run(wanted)) as events:
        if not wanted.stream:
            collected: list[Event] = []
            async for event in events:
                assert not isinstance(event, RenderedPrompt)
                collected.append(event)
            response = await whole_object(collected, frames.whole)
            if is_kept:
                kept.keep(frames.output)
            return plain_json_response(response + b"\n")

        async def chunks() -> AsyncIterator[bytes]:
            async for event in events:
                assert not isinstance(event, RenderedPrompt)
                data = joined(frames.events(event), named_event)
                if is_kept and isinstance(event, Done):
                    kept.keep(frames.output)
                yield data

        def failure(exc: FtdError) -> bytes:
            return joined(frames.failed(exc), named_event)

        return await stream(request, chunks(), SSE, failure, sse_sign)
