"""A process on an event loop: its log line by line, its status, signals that come too late."""

import signal
import sys

from ftd.daemon.engine_process import EngineProcess
from ftd.daemon.spawn import spawn


async def started(program: str) -> EngineProcess:
    spawned = spawn((sys.executable, "-c", program), "info")
    spawned.socket.close()
    process = EngineProcess(spawned)
    await process.open()
    return process


async def test_the_log_comes_in_lines_and_ends() -> None:
    process = await started(
        "import sys; sys.stderr.write('one\\n\\n' + 'x' * 200_000 + '\\nlast'); sys.exit(3)"
    )
    lines = []
    while (line := await process.log_line()) is not None:
        lines.append(line)
    await process.wait()
    process.close()
    assert [line for line in lines if line] == ["one", "last"], "a line that is too long is left out"
    assert process.returncode == 3


async def test_a_kill_is_a_status_and_later_ones_are_nothing() -> None:
    process = await started("import signal; signal.pause()")
    process.kill()
    await process.wait()
    assert process.returncode == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)
    process.close()
