"""Runners that may be prepared, against scripted engine processes."""

from fake_engine import fake_command

from ftd.daemon.runner import Runner
from ftd.daemon.spare import Runners
from ftd.engine.messages import Load

LOAD = Load(config_path="/none", blob_paths={}, context_tokens=128)


async def test_a_prepared_runner_serves_the_first_load_and_tells_of_its_end():
    ended, spare, runners = [], Runner(fake_command()), Runners(fake_command(), "info")
    await spare.prepare()
    pid = spare.pid
    runners.adopt(spare)
    first, second = runners.make(lambda: ended.append(1)), runners.make(lambda: ended.append(2))
    assert first is spare and second is not spare and second.pid is None
    await first.start(LOAD)
    assert first.pid == pid and first.is_alive
    await first.stop()
    assert ended == [1]


async def test_a_prepared_runner_that_died_is_not_used():
    spare, runners = Runner(fake_command()), Runners(fake_command(), "info")
    await spare.prepare()
    runners.adopt(spare)
    await spare.stop(grace_s=0)
    assert spare.death is not None and runners.make(lambda: None) is not spare


async def test_a_prepared_runner_that_nobody_needs_ends():
    spare, runners = Runner(fake_command()), Runners(fake_command(), "info")
    await spare.prepare()
    runners.adopt(spare, keep_s=0)
    await spare.exited.wait()
    assert runners.make(lambda: None) is not spare
