"""The application: routes and what surrounds them. Run it with ``handler_cancellation=True``.

A client that hangs up then cancels its handler, which closes the generators down to the runner, which tells
the engine.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from aiohttp import web

import ftd
from ftd.config import Config
from ftd.daemon import completion_routes, metrics_routes, model_routes
from ftd.daemon.middleware import Cors, HostCheck, add_origin, answer_errors
from ftd.daemon.services import SERVICES, Services
from ftd.daemon.spawn import WORKER_COMMAND
from ftd.registry.store import Store

MAX_BODY_BYTES = 64 << 20
_ROUTES = (completion_routes, metrics_routes, model_routes)
# Imported with their first request: NumPy, importers and the registry client take a fifth of a daemon's start
_LATE_ROUTES = (
    ("POST", "/api/embed", "embedding_routes", "embed"),
    ("POST", "/api/embeddings", "embedding_routes", "embeddings"),
    ("POST", "/v1/embeddings", "embedding_routes", "openai_embeddings"),
    ("HEAD", "/api/blobs/{digest}", "transfer_routes", "has_blob"),
    ("POST", "/api/blobs/{digest}", "transfer_routes", "receive_blob"),
    ("POST", "/api/create", "transfer_routes", "create"),
    ("POST", "/api/pull", "transfer_routes", "pull"),
    ("POST", "/api/push", "transfer_routes", "push"),
    ("POST", "/api/tokenize", "token_routes", "tokenize"),
    ("POST", "/api/detokenize", "token_routes", "detokenize"),
    ("POST", "/v1/messages", "anthropic_routes", "messages"),
    ("POST", "/v1/messages/count_tokens", "anthropic_routes", "count_tokens"),
    ("POST", "/v1/responses", "openai_responses_routes", "respond"),
)


_leading = partial(
    web.normalize_path_middleware, append_slash=False, redirect_class=web.HTTPTemporaryRedirect
)


def make_app(config: Config, store: Store, worker_command: Sequence[str] = WORKER_COMMAND) -> web.Application:
    """Return the daemon's application; its engine lives from start-up to clean-up of the application."""
    app = web.Application(
        middlewares=[
            web.middleware(HostCheck(config.server)),
            web.middleware(Cors(config.server.origins)),
            # Base addresses that end in a slash make paths with two, or with one at the end. One of them that
            # does both would take the last character of any path for a slash.
            _leading(merge_slashes=True),
            _leading(merge_slashes=False, remove_slash=True),
            web.middleware(answer_errors),
        ],
        client_max_size=MAX_BODY_BYTES,
    )
    app[SERVICES] = Services(config, store, worker_command)
    app.on_response_prepare.extend((add_origin, _add_server))
    app.cleanup_ctx.append(_run_services)
    for module in _ROUTES:
        module.add_routes(app)
    for method, path, late_module, name in _LATE_ROUTES:
        app.router.add_route(method, path, _late(f"ftd.daemon.{late_module}", name))
    return app


def _late(module: str, name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a handler that stands for the one called ``name`` in ``module``."""

    async def handle(request: web.Request) -> web.StreamResponse:
        handler = getattr(await asyncio.to_thread(importlib.import_module, module), name)
        response: web.StreamResponse = await handler(request)
        return response

    return handle


async def _add_server(request: web.Request, response: web.StreamResponse) -> None:
    """Say who answers: a second daemon that finds its port taken reads it."""
    response.headers["Server"] = f"ftd/{ftd.__version__}"


async def _run_services(app: web.Application) -> AsyncIterator[None]:
    services = app[SERVICES]
    await services.start()
    yield
    await services.close()
