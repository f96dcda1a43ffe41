"""Streams to a client that hangs up: no error of the daemon, whenever it does."""

import logging

import aiohttp
import pytest
from aiohttp import web

from ftd.daemon.middleware import answer_errors
from ftd.daemon.responses import NDJSON, stream
from ftd.errors import InvalidRequest


@pytest.mark.parametrize("moment", ["before a chunk", "before an error", "before the end"])
async def test_client_that_leaves_is_no_error(moment, caplog):
    """What Codex does: it closes the connection when it has read the last event."""
    returned = []

    async def handler(request):
        async def chunks():
            yield b"{}\n"
            request.transport.close()
            if moment == "before a chunk":
                yield b"{}\n"
            if moment == "before an error":
                raise InvalidRequest("too late")

        returned.append(await stream(request, chunks(), NDJSON, "ollama"))
        return returned[0]

    app = web.Application(middlewares=[web.middleware(answer_errors)])
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/") as response,
        ):
            with pytest.raises(aiohttp.ClientError):
                await response.read()
    finally:
        await runner.cleanup()
    assert returned[0].status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
