"""The manager against scripted engines: who is granted when, what stays loaded and how long."""

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from fake_engine import fake_command
from msgspec.structs import replace

from ftd import config, units
from ftd.daemon.load_spec import LoadSpec, default_window
from ftd.daemon.manager import ModelManager
from ftd.engine.messages import Generate
from ftd.errors import Busy, EngineDied, InvalidFtw
from ftd.names import parse_name


def spec(name="a", num_ctx=None, trained=8192):
    """A LoadSpec of a model that exists only here; the digest is the name."""
    info = SimpleNamespace(
        name=parse_name(name),
        digest=f"manifest-{name}",
        manifest=SimpleNamespace(config=SimpleNamespace(digest=f"config-{name}")),
        config=SimpleNamespace(blobs=[SimpleNamespace(size=1000)], hyperparameters={}),
        config_path=f"/{name}",
        blob_paths={},
        context_length=trained,
    )
    return LoadSpec(info=info, num_ctx=num_ctx)


@pytest.fixture
async def managers():
    """Make started managers; all are closed at the end."""
    made = []

    async def make(command=None, **server):
        settings = config.load(environ={})
        settings = settings._replace(server=settings.server._replace(**server))
        manager = ModelManager(settings, command or fake_command())
        await manager.start()
        made.append(manager)
        return manager

    yield make
    for manager in made:
        await manager.close()


async def until(condition):
    """Let the loop run until the condition holds; the timeout of the test bounds it."""
    while not condition():  # noqa: ASYNC110 -- the condition is in another task's state
        await asyncio.sleep(0.001)


async def use(manager, wanted, keep_alive_ns=None):
    async with manager.lease(wanted, keep_alive_ns) as lease:
        return lease.runner.pid


async def test_second_request_uses_the_same_engine(managers):
    manager = await managers()
    assert await use(manager, spec()) == await use(manager, spec())
    assert [row.spec.info.name.model for row in manager.loaded()] == ["a"]


async def test_a_device_that_is_asked_for_loads_the_model_there(managers):
    manager = await managers()
    first = await use(manager, spec())
    assert await use(manager, replace(spec(), device="cpu")) == first
    card = await use(manager, replace(spec(), device="cuda"))
    assert card != first and [row.spec.device for row in manager.loaded()] == ["cuda"]
    for device in ("", "auto", "cuda"):
        assert await use(manager, replace(spec(), device=device)) == card


async def test_concurrent_requests_cause_one_load(managers, control):
    manager = await managers(control.command())
    first = [asyncio.create_task(use(manager, spec())) for _ in range(5)]
    worker = await control.next_worker()
    late = [asyncio.create_task(use(manager, spec())) for _ in range(5)]
    await until(lambda: manager.num_waiting == 10)
    worker.ready()
    assert len(set(await asyncio.gather(*first, *late))) == 1
    assert control.workers.empty()


async def test_another_model_evicts_and_the_old_process_ends(managers):
    manager = await managers()
    async with manager.lease(spec("a")) as lease:
        first = lease.runner
    await use(manager, spec("b"))
    assert first.exited.is_set()
    assert [row.spec.info.name.model for row in manager.loaded()] == ["b"]


async def test_running_request_finishes_before_eviction_and_waiters_go_in_order(managers):
    manager = await managers()
    order, release = [], asyncio.Event()

    async def request(name, hold=None):
        async with manager.lease(spec(name)) as lease:
            order.append(name)
            if hold:
                await hold.wait()
            assert lease.runner.is_alive
            order.append(f"{name} done")

    running = asyncio.create_task(request("a", release))
    await until(lambda: order == ["a"])
    waiting = [asyncio.create_task(request(name)) for name in ("b", "c")]
    await until(lambda: len(manager._waiters) == 2)
    assert order == ["a"]
    release.set()
    await asyncio.gather(running, *waiting)
    assert order == ["a", "a done", "b", "b done", "c", "c done"]


async def test_requests_for_the_loaded_model_do_not_starve_a_waiter(managers):
    manager = await managers()
    order, release = [], asyncio.Event()

    async def request(label, name):
        async with manager.lease(spec(name)):
            order.append(label)
            await release.wait()

    tasks = [asyncio.create_task(request("a1", "a"))]
    await until(lambda: order == ["a1"])
    tasks.append(asyncio.create_task(request("b", "b")))
    await until(lambda: len(manager._waiters) == 1)
    tasks.append(asyncio.create_task(request("a2", "a")))
    await until(lambda: len(manager._waiters) == 2)
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a1", "b", "a2"]


async def test_any_window_uses_the_loaded_weights(managers):
    """KEEP-1: a smaller or absent window at once, a larger one after the engine made it so."""
    manager = await managers()
    first = await use(manager, spec(num_ctx=2048))
    assert await use(manager, spec(num_ctx=None)) == first
    assert await use(manager, spec(num_ctx=1024)) == first
    assert await use(manager, spec(num_ctx=4096)) == first
    assert manager.loaded()[0].context_tokens == 4096
    assert await use(manager, spec(num_ctx=2048)) == first


async def test_the_window_grows_when_nobody_uses_the_engine(managers, control):
    manager = await managers(control.command())
    small = asyncio.create_task(use(manager, spec(num_ctx=512)))
    worker = await control.next_worker()
    worker.ready(512)
    pid = await small
    async with manager.lease(spec(num_ctx=512)):
        larger = [asyncio.create_task(use(manager, spec(num_ctx=size))) for size in (1024, 2048)]
        await asyncio.sleep(0)
    assert (await worker.received("grow"))["context_tokens"] == 2048
    assert manager.is_loading
    worker.ready(2048)
    assert [await each for each in larger] == [pid, pid]


async def test_an_engine_that_cannot_grow_is_loaded_anew(managers, control):
    manager = await managers(control.command())
    small = asyncio.create_task(use(manager, spec(num_ctx=512)))
    worker = await control.next_worker()
    worker.ready(512)
    pid = await small
    larger = asyncio.create_task(use(manager, spec(num_ctx=1024)))
    await worker.received("grow")
    worker.send("failed", kind="OutOfMemory", message="too large")
    worker = await control.next_worker()
    assert worker.load["context_tokens"] == 1024
    worker.ready(1024)
    assert await larger != pid


async def test_window_is_capped_to_the_trained_one_so_it_never_reloads_for_more(managers):
    manager = await managers()
    first = await use(manager, spec(num_ctx=10**6, trained=512))
    assert await use(manager, spec(num_ctx=10**7, trained=512)) == first
    assert manager.loaded()[0].context_tokens == 512


async def test_lease_has_the_window_that_was_asked_for(managers):
    manager = await managers()
    async with manager.lease(spec(num_ctx=2048)) as lease:
        assert lease.context_tokens == 2048
    async with manager.lease(spec(num_ctx=100)) as lease:
        assert lease.context_tokens == 100
    async with manager.lease(spec()) as lease:
        assert lease.context_tokens == 2048


async def test_keep_alive_zero_unloads_after_the_last_lease_only(managers):
    manager = await managers()
    async with manager.lease(spec(), 0) as lease:
        async with manager.lease(spec()):
            pass
        assert lease.runner.is_alive
    assert manager.loaded() == []
    await lease.runner.exited.wait()


async def test_idle_model_expires_and_a_request_restarts_the_clock(managers):
    manager = await managers()
    async with manager.lease(spec(), units.parse_keep_alive("300ms")) as lease:
        runner = lease.runner
    left = time.time()
    assert abs(manager.loaded()[0].expires_at - (left + 0.3)) < 0.1
    async with manager.lease(spec()):
        pass
    assert runner.is_alive
    await runner.exited.wait()
    assert time.time() - left >= 0.29
    assert manager.loaded() == []


async def test_a_clock_that_is_set_changes_no_time_to_live(managers, monkeypatch):
    """As by NTP, some seconds after a machine without a battery has started."""
    manager = await managers(keep_alive_ns=60 * 10**9)
    await use(manager, spec())
    jumped = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: jumped)
    assert 50 < manager.loaded()[0].expires_at - jumped < 61


async def test_negative_keep_alive_never_expires(managers):
    manager = await managers()
    await use(manager, spec(), units.parse_keep_alive(-1))
    assert manager.loaded()[0].expires_at is None
    assert manager._engine.timer is None


async def test_request_without_keep_alive_leaves_the_engines_own(managers):
    manager = await managers(keep_alive_ns=60 * 10**9)
    await use(manager, spec(), units.parse_keep_alive("1h"))
    await use(manager, spec())
    assert manager.loaded()[0].expires_at > time.time() + 3000


async def test_default_keep_alive_comes_from_the_configuration(managers):
    manager = await managers(keep_alive_ns=60 * 10**9)
    await use(manager, spec())
    assert 50 < manager.loaded()[0].expires_at - time.time() < 61


async def test_expire_waits_for_running_requests(managers):
    manager = await managers()
    async with manager.lease(spec()) as lease:
        manager.expire(spec().key)
        await asyncio.sleep(0)
        assert lease.runner.is_alive
    await lease.runner.exited.wait()


async def test_request_after_expire_of_an_idle_model_loads_again(managers):
    manager = await managers()
    first = await use(manager, spec())
    manager.expire(spec().key)
    assert await use(manager, spec()) != first
    assert manager.loaded()[0].expires_at > time.time() + 200


async def test_expire_of_a_model_that_is_not_loaded_does_nothing(managers):
    manager = await managers()
    await use(manager, spec("a"))
    manager.expire(spec("b").key)
    assert len(manager.loaded()) == 1


async def test_load_goes_on_when_the_client_leaves(managers, control):
    manager = await managers(control.command())
    client = asyncio.create_task(use(manager, spec(), 0))
    worker = await control.next_worker()
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    assert [row.is_loading for row in manager.loaded()] == [True]
    again = asyncio.create_task(use(manager, spec()))
    worker.ready()
    pid = await again
    assert manager.loaded()[0].pid == pid
    assert control.workers.empty()


async def test_load_finished_with_nobody_waiting_stays_for_the_next(managers, control):
    manager = await managers(control.command())
    client = asyncio.create_task(use(manager, spec(), 0))
    worker = await control.next_worker()
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    worker.ready()
    await until(lambda: not manager.is_loading)
    assert manager.loaded()[0].expires_at > time.time() + 200


async def test_waiter_that_left_is_not_loaded_for(managers, control):
    manager = await managers(control.command())
    first = asyncio.create_task(use(manager, spec("a")))
    worker = await control.next_worker()
    gone = asyncio.create_task(use(manager, spec("b")))
    third = asyncio.create_task(use(manager, spec("c")))
    await until(lambda: len(manager._waiters) == 3)
    gone.cancel()
    worker.ready()
    await first
    second_worker = await control.next_worker()
    assert second_worker.load["config_path"] == "/c"
    second_worker.ready()
    await third


async def test_full_queue_is_busy_with_the_exact_text(managers, control):
    manager = await managers(control.command(), max_queue=1)
    first = asyncio.create_task(use(manager, spec("a")))
    await control.next_worker()
    with pytest.raises(Busy) as caught:
        await use(manager, spec("b"))
    assert str(caught.value) == "server busy, please try again.  maximum pending requests exceeded"
    first.cancel()


async def test_failed_load_reaches_all_who_wait_for_it_and_the_next_tries_again(managers):
    manager = await managers(fake_command(fail_load=["InvalidFtw", "bad plane"]))
    results = await asyncio.gather(*(use(manager, spec()) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [InvalidFtw] * 3
    with pytest.raises(InvalidFtw):
        await use(manager, spec())
    assert manager.loaded() == []


async def test_dead_engine_is_replaced_by_the_next_request(managers):
    manager = await managers()
    async with manager.lease(spec()) as lease:
        lease.runner._process.kill()
        await lease.runner.exited.wait()
        assert await use(manager, spec()) != lease.runner.pid
    assert len(manager.loaded()) == 1


async def test_close_refuses_waiters_and_ends_the_engine(managers, control):
    manager = await managers(control.command())
    client = asyncio.create_task(use(manager, spec()))
    await control.next_worker()
    closing = asyncio.create_task(manager.close())
    with pytest.raises((Busy, EngineDied)):
        await client
    await closing
    assert manager.loaded() == []


async def test_drain_waits_for_answers_but_not_for_ever(managers, control):
    """The second and third answer do not end by themselves: they are told why they end."""
    for grace_s, has_end in ((60, True), (0.05, False), (60, False)):
        manager = await managers(control.command())
        holding = asyncio.Event()

        async def hold(manager=manager, holding=holding):
            async with manager.lease(spec()) as lease:
                message = Generate(request_id=lease.runner.next_request_id(), ids=[1])
                holding.set()
                return [reply async for reply in lease.runner.generate(message)]

        client = asyncio.create_task(hold())
        worker = await control.next_worker()
        worker.ready()
        request_id = (await worker.received("generate"))["request_id"]
        draining = asyncio.create_task(manager.drain(grace_s))
        await asyncio.sleep(0)
        if grace_s > 1 and not has_end:
            manager.hurry()
        if has_end:
            worker.finish(request_id)
            assert len(await client) == 1
        else:
            with pytest.raises(EngineDied, match=r"^the server is shutting down$"):
                await client
        await draining
        assert manager.loaded() == []


@pytest.mark.parametrize(
    ("free_bytes", "trained", "configured", "window"),
    [
        (10**9, 131072, 0, 4096),
        (2**40, 131072, 0, 32768),
        (2**40, 8192, 0, 8192),
        (2**40, 2048, 0, 2048),
        (2**40, 0, 0, 4096),
        (10**9, 131072, 65536, 65536),
        (10**9, 8192, 65536, 8192),
        (10**9, 8192, 1, 4),
    ],
)
def test_default_window(free_bytes, trained, configured, window):
    info = SimpleNamespace(
        context_length=trained,
        config=SimpleNamespace(
            hyperparameters={
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "hidden_size": 4096,
            }
        ),
    )
    engine = config.load(environ={}).engine._replace(context_tokens=configured)
    assert default_window(info, engine, free_bytes) == window
