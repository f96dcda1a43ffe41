"""Routes that answer with text: generate and chat in Ollama's form, chat and completions in OpenAI's."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ftd.api import ollama, openai
from ftd.api.request import CompletionRequest, Delta, Done, Event
from ftd.daemon.completion import RenderedPrompt
from ftd.daemon.responses import (
    NDJSON,
    SSE,
    SSE_END,
    event,
    joined,
    line,
    object_response,
    plain_object_response,
    read_body,
    sse_sign,
    stream,
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
    wanted = ollama.parse_generate(await read_body(request))
    return await _answer_ollama(request, wanted, ollama.GenerateFrames(wanted))


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    wanted = ollama.parse_chat(await read_body(request))
    return await _answer_ollama(request, wanted, ollama.ChatFrames(wanted))


async def _answer_ollama(
    request: web.Request, wanted: CompletionRequest, frames: ollama.GenerateFrames | ollama.ChatFrames
) -> web.StreamResponse:
    async with aclosing(request.app[SERVICES].completions.run(wanted)) as events:
        if not wanted.stream or wanted.render_only:
            return object_response(await _whole(events, frames.whole, frames.rendered))
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
    fields = await read_body(request, "EOF")
    wanted = openai.parse_chat(fields)
    return await _answer_openai(request, wanted, openai.ChatFrames(wanted, openai.wants_usage(fields)))


async def openai_completion(request: web.Request) -> web.StreamResponse:
    """Continue a prompt in OpenAI's form."""
    fields = await read_body(request, "EOF")
    wanted = openai.parse_completion(fields)
    return await _answer_openai(request, wanted, openai.CompletionFrames(wanted, openai.wants_usage(fields)))


async def _answer_openai(
    request: web.Request, wanted: CompletionRequest, frames: openai.ChatFrames | openai.CompletionFrames
) -> web.StreamResponse:
    async with aclosing(request.app[SERVICES].completions.run(wanted)) as events:
        if not wanted.stream:
            return plain_object_response(await _whole(events, frames.whole), newline=True)

        async def chunks() -> AsyncIterator[bytes]:
            async for event_ in events:
                assert not isinstance(event_, RenderedPrompt)
                yield joined(frames.chunks(event_), event)
            yield SSE_END

        return await stream(request, chunks(), SSE, "openai", sse_sign)


async def _whole(
    events: Events,
    whole: Callable[..., dict[str, Any]],
    rendered: Callable[[str], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the single object of an answer that is not streamed."""
    collected: list[Event] = []
    async for event_ in events:
        if isinstance(event_, RenderedPrompt):
            assert rendered is not None, "only Ollama's API can ask for the prompt"
            return rendered(event_.text)
        collected.append(event_)
    return whole(*ollama.collect(collected))
