"""The runner against a scripted engine process: replies go to the right caller, a death reaches all."""

import asyncio
import signal
import time

import pytest
from fake_engine import fake_command

from ftd.daemon.runner import Runner
from ftd.engine.messages import Embed, Finished, Generate, Load, Tokens
from ftd.errors import EngineDied, EngineError, InvalidFtw

LOAD = Load(config_path="/none", blob_paths={}, context_tokens=128)


@pytest.fixture
async def started():
    """Start runners by script; all are stopped at the end."""
    runners = []

    async def start(command, **keywords):
        runner = Runner(command, **keywords)
        runners.append(runner)
        await runner.start(LOAD)
        return runner

    yield start
    for runner in runners:
        await runner.stop()


async def loaded(control):
    """Return a runner whose engine has loaded, and the engine's script; the caller stops it."""
    runner = Runner(control.command())
    starting = asyncio.create_task(runner.start(LOAD))
    worker = await control.next_worker()
    worker.ready()
    await starting
    return runner, worker


async def collect(runner, **fields):
    message = Generate(request_id=runner.next_request_id(), **fields)
    return [reply async for reply in runner.generate(message)]


async def test_generate_yields_tokens_then_finished(started):
    runner = await started(fake_command())
    *tokens, last = await collect(runner, ids=[5, 6, 7])
    assert [reply.ids for reply in tokens] == [[5], [6], [7]]
    assert isinstance(last, Finished) and (last.reason, last.output_tokens) == ("stop", 3)


async def test_replies_of_concurrent_requests_do_not_mix(started):
    runner = await started(fake_command())
    answers = await asyncio.gather(*(collect(runner, ids=[n] * (n + 1)) for n in range(20)))
    for n, answer in enumerate(answers):
        assert [reply.ids for reply in answer[:-1]] == [[n]] * (n + 1)


async def test_ready_and_progress_are_kept(started):
    runner = await started(fake_command())
    assert runner.ready.context_tokens == 128
    assert (runner.progress.completed_bytes, runner.progress.total_bytes) == (50, 100)


async def test_embed_and_stats(started):
    runner = await started(fake_command())
    embedded = await runner.embed(Embed(request_id=runner.next_request_id(), sequences=[[1], [2, 3]]))
    assert (embedded.width, len(embedded.data), embedded.prompt_tokens) == (4, 32, 3)
    assert (await runner.stats()).running == 0


async def test_closing_the_iterator_cancels_the_request(control):
    runner, worker = await loaded(control)
    stream = runner.generate(Generate(request_id=9, ids=[1]))
    first = asyncio.create_task(anext(stream))
    await worker.received("generate")
    worker.send("tokens", request_id=9, ids=[4])
    assert (await first) == Tokens(request_id=9, ids=[4])
    await stream.aclose()
    assert (await worker.received("cancel"))["request_id"] == 9
    worker.send("tokens", request_id=9, ids=[5])
    worker.finish(9, "abort")
    other = asyncio.create_task(collect(runner, ids=[1]))
    again = (await worker.received("generate"))["request_id"]
    worker.finish(again)
    assert [reply.reason for reply in await other] == ["stop"]
    await runner.stop()


async def test_cancelling_the_consumer_cancels_the_request(control):
    runner, worker = await loaded(control)
    consumer = asyncio.create_task(collect(runner, ids=[1]))
    request_id = (await worker.received("generate"))["request_id"]
    consumer.cancel()
    assert (await worker.received("cancel"))["request_id"] == request_id
    await runner.stop()


async def test_killed_engine_fails_all_waiting_within_two_seconds(started):
    gone = asyncio.Event()
    runner = await started(fake_command(endless=True, interval_s=0.01), on_exit=gone.set)
    waiting = [asyncio.create_task(collect(runner, ids=[n])) for n in range(3)]
    await asyncio.wait(waiting, timeout=0.1)
    killed = time.monotonic()
    runner._process.send_signal(signal.SIGKILL)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert time.monotonic() - killed < 2
    assert [type(answer) for answer in answers] == [EngineDied] * 3
    assert str(answers[0]).endswith("signal 9, as when memory runs out")
    await gone.wait()
    with pytest.raises(EngineDied):
        await collect(runner, ids=[1])
    assert not runner.is_alive


async def test_death_names_the_last_line_of_stderr(started):
    runner = await started(fake_command(crash_after=2))
    with pytest.raises(EngineDied, match=r"unexpectedly stopped.*exit status 7: fake worker: out of luck"):
        await collect(runner, ids=[1, 2, 3])


async def test_what_the_log_says_of_good_times_is_no_cause(started):
    log = "2026-01-02 03:04:05,678 ERROR   ftd.engine bad page\n2026-01-02 03:04:06,000 INFO    ftd.engine ok"
    with pytest.raises(EngineDied, match=r"exit status 3: 2026-.* ERROR   ftd.engine bad page$"):
        await started(fake_command(crash_load=log))


async def test_crash_while_loading_is_reported(started):
    with pytest.raises(EngineDied, match="exit status 3: no such instruction"):
        await started(fake_command(crash_load="no such instruction"))


async def test_failed_load_raises_the_named_class(started):
    with pytest.raises(InvalidFtw, match="bad plane"):
        await started(fake_command(fail_load=["InvalidFtw", "bad plane"]))


async def test_load_without_progress_times_out_and_kills():
    runner = Runner(fake_command(silent_load=True))
    with pytest.raises(EngineError, match="no progress in 50ms, nothing read"):
        await runner.start(LOAD, no_progress_timeout_s=0.05)
    assert runner.exited.is_set()


async def test_load_with_progress_does_not_time_out(control):
    runner = Runner(control.command())
    await runner.prepare()
    worker = await control.workers.get()
    await worker.received("started")  # how long a process takes to start does not count
    starting = asyncio.create_task(runner.start(LOAD, no_progress_timeout_s=1.0))
    await worker.received("load")
    for completed in range(4):
        await asyncio.sleep(0.3)
        worker.send("progress", completed_bytes=completed, total_bytes=4)
    worker.ready()
    await starting
    assert runner.is_alive
    await runner.stop()


async def test_missing_program_is_a_clear_error():
    with pytest.raises(EngineError, match="cannot start the engine"):
        await Runner(("/nonexistent/engine",)).start(LOAD)


@pytest.mark.parametrize("raw", ["ffffffff", "02000000c1c1", "01000000a0"])
async def test_garbage_from_the_engine_is_its_death(control, raw):
    runner = Runner(control.command())
    starting = asyncio.create_task(runner.start(LOAD))
    worker = await control.next_worker()
    worker.tell(raw=raw)
    with pytest.raises(EngineDied, match="engine sent"):
        await starting
    assert runner.exited.is_set()


async def test_failed_without_request_ends_the_engine(control):
    runner, worker = await loaded(control)
    waiting = asyncio.create_task(collect(runner, ids=[1]))
    await worker.received("generate")
    worker.send("failed", kind="EngineError", message="pages leaked: 3")
    with pytest.raises(EngineDied, match="pages leaked: 3"):
        await waiting
    await runner.exited.wait()


async def test_stop_ends_the_process(started):
    runner = await started(fake_command())
    await runner.stop()
    assert runner.exited.is_set() and runner._process.returncode == 0
