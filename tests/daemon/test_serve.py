"""``serve`` as a process: it listens, ends on a signal with its engine, and says who holds a taken port."""

import asyncio
import json
import os
import signal
import socket
import sys

import aiohttp
import pytest
from examples import first_quick
from faulty_registry import FaultyRegistry
from ports import free_port

from ftd import config
from ftd.daemon import serve
from ftd.errors import Conflict, InvalidOption

PROGRAM = (
    "from ftd import config, log; log.configure(); from ftd.daemon import serve; serve.run(config.load())"
)


@pytest.fixture
async def start(tmp_path):
    processes = []

    async def begin(port):
        environ = os.environ | {
            "FTD_HOST": f"127.0.0.1:{port}",
            "FTD_MODELS": str(tmp_path / "models"),
            "FTD_HOME": str(tmp_path / "home"),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, env=environ, stderr=asyncio.subprocess.PIPE
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()


@pytest.mark.parametrize("number", first_quick(signal.SIGTERM, signal.SIGINT))
async def test_serves_until_a_signal(start, number):
    port = free_port()
    process = await start(port)
    line = (await process.stderr.readline()).decode()
    assert f"listening address=127.0.0.1:{port}" in line
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
        assert response.headers["Server"].startswith("ftd/")
    process.send_signal(number)
    assert await process.wait() == 0


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_pull_under_way_ends_in_words_and_goes_on_later(start, tmp_path, is_stream):
    registry = FaultyRegistry()
    await registry.start()
    layer = b"weights" * 1_000_000
    registry.faults.gate, registry.faults.gate_after = asyncio.Event(), len(layer) // 2
    body = {"model": registry.add(b"{}", [layer]).display, "insecure": True, "stream": is_stream}
    port = free_port()
    process = await start(port)
    await process.stderr.readline()
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/api/pull", json=body))
        await registry.reached_gate.wait()
        process.terminate()
        response = await asked
        *_, last = (await response.text()).splitlines()
    assert response.status == (200 if is_stream else 503)
    error = {"error": "the server is shutting down", "hint": "ask for it again when it is back"}
    assert json.loads(last) == error
    assert await process.wait() == 0
    assert len(list((tmp_path / "models/blobs").glob("*-partial"))) == 1
    await registry.stop()


async def test_a_body_that_cannot_be_read_is_not_our_fault(start):
    """The client is told in words; the log gets no traceback, with which anybody could fill the disk."""
    port = free_port()
    process = await start(port)
    await process.stderr.readline()
    url, headers = f"http://127.0.0.1:{port}/api/chat", {"Content-Encoding": "gzip"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=b"no gzip", headers=headers, compress=False) as response,
    ):
        assert response.status == 400
        error = (await response.json())["error"]
        assert error == "request body cannot be read: Can not decode content-encoding: gzip"
    process.terminate()
    assert b"Traceback" not in await process.stderr.read()
    assert await process.wait() == 0


async def test_second_daemon_names_the_first(start):
    port = free_port()
    process = await start(port)
    await process.stderr.readline()
    settings = config.load(environ={"FTD_HOST": f"127.0.0.1:{port}"})
    with pytest.raises(Conflict, match=rf"in use: 127.0.0.1:{port}, by another ftd daemon \(ftd/"):
        await serve.serve(settings)


async def test_taken_port_of_a_stranger():
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        settings = config.load(environ={"FTD_HOST": f"127.0.0.1:{stranger.getsockname()[1]}"})
        with pytest.raises(Conflict, match="the address is in use") as caught:
            await serve.serve(settings)
        assert caught.value.hint == "stop that program, or choose another address with FTD_HOST"


@pytest.mark.parametrize("host", ["https://127.0.0.1:1", "192.0.2.1:1", "no.such.host.invalid:1"])
async def test_address_that_cannot_be_listened_on(host):
    with pytest.raises(InvalidOption, match="cannot listen"):
        await serve.serve(config.load(environ={"FTD_HOST": host}))
