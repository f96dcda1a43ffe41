"""Starting a process without an event loop: what it gets, and what it cannot see of ours."""

import os
import sys

import pytest

from ftd.daemon.spawn import spawn
from ftd.errors import EngineError

PROGRAM = """
import os, socket, sys
sys.stderr.write("level " + sys.argv[2])
with socket.socket(fileno=int(sys.argv[1])) as daemon:
    sys.stdin.read() == "" and daemon.send(b"leader" if os.getsid(0) == os.getpid() else b"no leader")
    daemon.recv(1)
"""


def test_a_process_has_its_socket_and_a_log_and_ends_with_our_end() -> None:
    spawned = spawn((sys.executable, "-c", PROGRAM), "info")
    spawned.socket.setblocking(True)
    assert spawned.socket.recv(20) == b"leader"
    spawned.socket.close()
    with os.fdopen(spawned.log, "rb") as log:
        assert log.read() == b"level info"
    assert os.waitpid(spawned.pid, 0)[1] == 0


def test_a_program_that_is_not_there_leaves_no_file_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineError, match="cannot start the engine"):
        spawn(("/nonexistent/engine",), "info")
    assert set(os.listdir("/proc/self/fd")) == before
