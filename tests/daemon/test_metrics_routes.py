"""``/metrics`` of a live daemon: before a model is loaded, after an answer, while its engine is silent."""

import asyncio

from live_daemon import running
from prometheus import read

import ftd
from ftd.daemon import manager

USER = [{"role": "user", "content": "hi"}]


async def scrape(daemon):
    response = await daemon.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(await response.text())


async def test_answers_and_engine_are_counted(tmp_path):
    async with running(tmp_path) as daemon:
        values = await scrape(daemon)
        assert values["ftd_info", (("version", ftd.__version__),)] == 1
        assert not any(name.startswith("ftd_engine") for name, _ in values)

        answer = await daemon.json("/api/chat", {"model": "tiny", "messages": USER, "stream": False})
        await daemon.json("/api/chat", {"model": "nope", "messages": USER}, status=404)
        values = await scrape(daemon)
        model = (("model", "tiny:latest"),)
        assert values["ftd_requests_total", (*model, ("reason", "stop"))] == 1
        assert values["ftd_prompt_tokens_total", model] == answer["prompt_eval_count"]
        assert values["ftd_output_tokens_total", model] == 12
        assert values["ftd_first_token_seconds_count", ()] == values["ftd_request_seconds_count", ()] == 1
        assert values["ftd_model_bytes", (*model, ("where", "ram"))] == 1230
        assert values["ftd_engine_sequences", (("state", "running"),)] == 0
        assert values["ftd_http_responses_total", (("route", "/api/chat"), ("status", "200"))] == 1
        assert values["ftd_http_responses_total", (("route", "/api/chat"), ("status", "404"))] == 1
        assert values["ftd_waiting_requests", ()] == 0


async def test_unknown_paths_are_one_row(tmp_path):
    async with running(tmp_path) as daemon:
        for path in ("/a", "/b"):
            await daemon.get(path)
        values = await scrape(daemon)
        assert values["ftd_http_responses_total", (("route", "none"), ("status", "404"))] == 2


async def test_silent_engine_holds_nothing_up(tmp_path, control, monkeypatch):
    monkeypatch.setattr(manager, "STATS_S", 0.05)
    async with running(tmp_path, control.command()) as daemon:
        asked = asyncio.create_task(daemon.post("/api/chat", {"model": "tiny", "messages": USER}))
        worker = await control.next_worker()
        worker.ready()
        message = await worker.received("generate")
        values = await scrape(daemon)
        assert not any(name.startswith("ftd_engine") for name, _ in values)
        worker.finish(message["request_id"])
        assert (await asked).status == 200
