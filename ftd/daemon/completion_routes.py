"""Routes that answer with text: generate and chat in Ollama's form, chat and completions in OpenAI's."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ftd.api import ollama, openai
from ftd.api.jsontext import Fields
from ftd.api.request import CompletionRequest, Delta, Done, Event
from ftd.daemon.completion import RenderedPrompt
from ftd.daemon.responses import (
    NDJSON,
    SSE,
    SSE_END,
    encoded,
    event,
    joined,
    json_response,
    line,
    object_response,
    plain_json_response,
    read_body,
    sse_sign,
    stream,
    whole_object,
)
from ftd.daemon.services import SERVICES

Events = AsyncGenerator[Event | RenderedPrompt, None]


def add_routes(app: web.Application) -> None:
    """Register the routes of this module."""
    app.router.add_post("/api/generate", generate)
    app.router.add_post("/api/chat", chat)
    app.router.add_post("/v1/chat/completions", openai_chat)
    app.router.add_post("/v1/completions", openai_completion)


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue a prompt."""
    wanted = await read_body(request, ollama.parse_generate)
    return await _answer_ollama(request, wanted, ollama.GenerateFrames(wanted))


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    wanted = await read_body(request, ollama.parse_chat)
    return await _answer_ollama(request, wanted, ollama.ChatFrames(wanted))


async def _answer_ollama(
    request: web.Request, wanted: CompletionRequest, frames: ollama.GenerateFrames | ollama.ChatFrames
) -> web.StreamResponse:
    async with aclosing(request.app[SERVICES].completions.run(wanted)) as events:
        if not wanted.stream or wanted.render_only:
            return json_response(await _whole(events, frames.whole, frames.rendered))
        if wanted.is_empty:  # a load or an unload is one object, whoever streams
            done = await anext(events)
            assert isinstance(done, Done)
            return object_response(frames.frame(done))

        async def lines() -> AsyncIterator[bytes]:
            async for event_ in events:
                assert not isinstance(event_, RenderedPrompt)
                yield line(frames.frame(event_))

        return await stream(request, lines(), NDJSON, "ollama", lambda: line(frames.frame(Delta())))


async def openai_chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation in OpenAI's form."""

    def parse(fields: Fields) -> tuple[CompletionRequest, bool]:
        return openai.parse_chat(fields), openai.wants_usage(fields)

    wanted, has_usage = await read_body(request, parse, "EOF")
    return await _answer_openai(request, wanted, openai.ChatFrames(wanted, has_usage))


async def openai_completion(request: web.Request) -> web.StreamResponse:
    """Continue a prompt in OpenAI's form."""

    def parse(fields: Fields) -> tuple[CompletionRequest, bool]:
        return openai.parse_completion(fields), openai.wants_usage(fields)

    wanted, has_usage = await read_body(request, parse, "EOF")
    return await _answer_openai(request, wanted, openai.CompletionFrames(wanted, has_usage))


async def _answer_openai(
    request: web.Request, wanted: CompletionRequest, frames: openai.ChatFrames | openai.CompletionFrames
) -> web.StreamResponse:
    async with aclosing(request.app[SERVICES].completions.run(wanted)) as events:
        if not wanted.stream:
            return plain_json_response(await _whole(events, frames.whole) + b"\n")

        async def chunks() -> AsyncIterator[bytes]:
            async for event_ in events:
                assert not isinstance(event_, RenderedPrompt)
                yield joined(frames.chunks(event_), event)
            yield SSE_END

        return await stream(request, chunks(), SSE, "openai", sse_sign)


async def _whole(
    events: Events,
    whole: Callable[[Delta, Done], dict[str, Any]],
    rendered: Callable[[str], dict[str, Any]] | None = None,
) -> bytes:
    """Return the single object of an answer that is not streamed."""
    collected: list[Event] = []
    async for event_ in events:
        if isinstance(event_, RenderedPrompt):
            assert rendered is not None, "only Ollama's API can ask for the prompt"
            return await encoded(len(event_.text), rendered(event_.text))
        collected.append(event_)
    return await whole_object(collected, whole)
