"""``/metrics``: what Prometheus scrapes."""

from collections.abc import Iterator

from aiohttp import web

import ftd
from ftd.daemon.metrics import CONTENT_TYPE, Sample
from ftd.daemon.services import SERVICES, Services
from ftd.engine.messages import Stats


def add_routes(app: web.Application) -> None:
    """Register the route of this module, and count what every route answers."""
    app.router.add_get("/metrics", metrics, allow_head=False)
    app.on_response_prepare.append(_count)


async def metrics(request: web.Request) -> web.Response:
    """Return every number; those of the engine are missing while it is too busy to answer."""
    services = request.app[SERVICES]
    samples = [*_daemon(services)]
    stats = await services.manager.stats()
    if stats is not None:
        samples += _engine(stats)
    body = services.metrics.text(samples).encode("utf-8")
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def _count(request: web.Request, response: web.StreamResponse) -> None:
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "none"
    request.app[SERVICES].metrics.add("ftd_http_responses_total", route=route, status=str(response.status))


def _daemon(services: Services) -> Iterator[Sample]:
    yield Sample("ftd_info", 1, {"version": ftd.__version__})
    yield Sample("ftd_waiting_requests", services.manager.num_waiting)
    for model in services.manager.loaded():
        if not model.is_loading:
            name = {"model": model.spec.info.name.display}
            yield Sample("ftd_model_bytes", model.size_bytes - model.size_vram_bytes, name | {"where": "ram"})
            yield Sample("ftd_model_bytes", model.size_vram_bytes, name | {"where": "vram"})
            yield Sample("ftd_model_context_tokens", model.context_tokens, name)


def _engine(stats: Stats) -> Iterator[Sample]:
    yield Sample("ftd_engine_sequences", stats.running, {"state": "running"})
    yield Sample("ftd_engine_sequences", stats.waiting, {"state": "waiting"})
    for owner in ("free", "tree", "live"):
        yield Sample("ftd_engine_pages", getattr(stats, f"pages_{owner}"), {"owner": owner})
    yield Sample("ftd_engine_steps_total", stats.steps)
    yield Sample("ftd_engine_tokens_total", stats.prefill_tokens, {"phase": "prefill"})
    yield Sample("ftd_engine_tokens_total", stats.decode_tokens, {"phase": "decode"})
    yield Sample("ftd_engine_tokens_total", stats.cached_tokens, {"phase": "cached"})
    if stats.expert_slots:
        yield Sample("ftd_engine_expert_slots", stats.expert_slots)
        for outcome in ("expert_hits", "expert_fills", "expert_transient_fills", "experts_on_cpu"):
            yield Sample("ftd_engine_expert_reads_total", getattr(stats, outcome), {"outcome": outcome})
        yield Sample("ftd_engine_expert_bytes_total", stats.expert_copied_bytes, {"to": "card"})
        yield Sample("ftd_engine_expert_bytes_total", stats.expert_cpu_bytes, {"to": "cpu"})
        yield Sample("ftd_engine_expert_cpu_seconds_total", stats.expert_cpu_ns / 1e9)
        for misses, copied in enumerate(stats.expert_split, 1):
            yield Sample("ftd_engine_expert_split", copied, {"misses": str(misses)})
    yield Sample("ftd_engine_seconds_total", stats.prefill_ns / 1e9, {"phase": "prefill"})
    yield Sample("ftd_engine_seconds_total", stats.decode_ns / 1e9, {"phase": "decode"})
