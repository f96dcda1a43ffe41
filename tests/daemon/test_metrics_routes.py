"""``/metrics`` of a live daemon: before a model is loaded, after an answer, while its engine is silent."""

import asyncio

from fake_engine import fake_command
from live_daemon import running
from prometheus import read
from tiny_model import ids_of

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


async def test_experts_beyond_the_card_are_counted(tmp_path):
    stats = {
        "prefill_tokens": 30,
        "decode_tokens": 10,
        "expert_slots": 64,
        "expert_reads": 100,
        "expert_hits": 80,
        "expert_fills": 5,
        "expert_transient_fills": 3,
        "experts_on_cpu": 12,
        "expert_copied_bytes": 8000,
        "expert_cpu_bytes": 12000,
        "expert_cpu_ns": 2_500_000_000,
        "expert_split": [0, 1],
    }
    script = {"reply": ids_of("Hello"), "stats": stats, "device_bytes": 500}
    async with running(tmp_path, fake_command(**script)) as daemon:
        await daemon.json("/api/chat", {"model": "tiny", "messages": USER, "stream": False})
        values = await scrape(daemon)
        assert values["ftd_engine_expert_slots", ()] == 64
        assert values["ftd_engine_expert_reads_total", (("outcome", "expert_hits"),)] == 80
        assert values["ftd_engine_expert_bytes_total", (("to", "card"),)] == 8000
        assert values["ftd_engine_expert_bytes_total", (("to", "cpu"),)] == 12000
        assert values["ftd_engine_expert_cpu_seconds_total", ()] == 2.5
        assert values["ftd_engine_expert_split", (("misses", "2"),)] == 1
        response = await daemon.get("/api/ps")
        (row,) = (await response.json())["models"]
        assert row["experts"] == {
            "slots": 64,
            "reads": 100,
            "hits": 80,
            "hit_rate": 0.8,
            "fills": 5,
            "transient_fills": 3,
            "on_cpu": 12,
            "copied_bytes_per_token": 200,
            "cpu_bytes_per_token": 300,
            "cpu_seconds": 2.5,
            "split": [0, 1],
        }


async def test_models_without_such_experts_have_no_such_field(tmp_path):
    async with running(tmp_path) as daemon:
        await daemon.json("/api/chat", {"model": "tiny", "messages": USER, "stream": False})
        (row,) = (await (await daemon.get("/api/ps")).json())["models"]
        assert "experts" not in row


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
