"""Requests that end before their answer does: engines die, clients leave, daemons are busy."""

import asyncio
import json

import pytest
from live_daemon import running, says

USER = [{"role": "user", "content": "hi"}]


async def test_engine_death_in_a_stream_is_its_last_line(tmp_path):
    async with running(tmp_path, says("abcdef", crash_after=3)) as daemon:
        *deltas, last = await daemon.lines("/api/generate", {"model": "tiny", "prompt": "x"})
        assert "".join(line["response"] for line in deltas) == "abc"
        assert "out of luck" in last["error"] and "done" not in last


async def test_engine_death_in_sse_is_an_error_event_without_done(tmp_path):
    async with running(tmp_path, says("abcdef", crash_after=3)) as daemon:
        parts = await daemon.events("/v1/chat/completions", {"model": "tiny", "messages": USER})
        error = json.loads(parts[-1])["error"]
        assert "out of luck" in error["message"] and error["type"] == "api_error"


async def test_engine_death_before_the_first_line_is_a_500_and_the_next_request_works(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        asking = asyncio.create_task(daemon.post("/api/chat", {"model": "tiny", "messages": USER}))
        worker = await control.next_worker()
        worker.ready()
        await worker.received("generate")
        worker.tell(exit=9, stderr="illegal instruction")
        response = await asking
        assert response.status == 500
        assert "exit status 9: illegal instruction" in await response.text()
        again = asyncio.create_task(daemon.post("/api/chat", {"model": "tiny", "messages": USER}))
        worker = await control.next_worker()
        worker.ready()
        request_id = (await worker.received("generate"))["request_id"]
        worker.finish(request_id)
        assert (await again).status == 200


async def test_client_that_hangs_up_cancels_its_request(tmp_path, control):
    async with running(tmp_path, control.command()) as daemon:
        asking = asyncio.create_task(
            daemon.session.post(daemon.url + "/api/generate", json={"model": "tiny", "prompt": "x"})
        )
        worker = await control.next_worker()
        worker.ready()
        request_id = (await worker.received("generate"))["request_id"]
        worker.send("tokens", request_id=request_id, ids=[65])
        response = await asking
        assert json.loads(await response.content.readline())["response"] == "A"
        response.close()
        assert (await worker.received("cancel"))["request_id"] == request_id


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_client_that_leaves_before_the_answer_cancels_its_request(tmp_path, control, path):
    async with running(tmp_path, control.command()) as daemon:
        body = {"model": "tiny", "messages": USER, "stream": False}
        asking = asyncio.create_task(daemon.session.post(daemon.url + path, json=body))
        worker = await control.next_worker()
        worker.ready()
        request_id = (await worker.received("generate"))["request_id"]
        asking.cancel()
        assert (await worker.received("cancel"))["request_id"] == request_id


async def test_busy_daemon_answers_503_with_the_exact_text(tmp_path, control):
    async with running(tmp_path, control.command(), models=("a", "b"), max_queue=1) as daemon:
        first = asyncio.create_task(daemon.post("/api/generate", {"model": "a", "prompt": "x"}))
        worker = await control.next_worker()
        response = await daemon.post("/api/generate", {"model": "b", "prompt": "x"})
        assert response.status == 503 and response.headers["Retry-After"] == "1"
        error = (await response.json())["error"]
        assert error == "server busy, please try again.  maximum pending requests exceeded"
        worker.ready()
        worker.finish((await worker.received("generate"))["request_id"])
        assert (await first).status == 200
