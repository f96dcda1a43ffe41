"""``ftd serve``: run the daemon in the foreground. Every setting is also a flag.

A command that starts a daemon wants an answer from it soon. So it listens first: the command need not try
again and again. Then an engine process starts, which takes as long to start as the daemon does, and only
then the daemon is imported.
"""

import argparse
import gc
import importlib

from ftd import config, environment
from ftd.cli import flags
from ftd.daemon import listening, spawn


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it.

    Raises Conflict if something else listens at the address, KernelUnavailable for an FTD_ISA beyond this
    machine.
    """
    loaded = config.load(flags.values(options))
    if environment.isa():  # more than this machine has is told now, not by each engine
        importlib.import_module("ftd.kernels.cpu").isa()
    environment.prepared()
    listener = listening.listen(loaded.server.host)
    engine = spawn.spawn(spawn.WORKER_COMMAND, loaded.server.log_level)
    gc.disable()  # what is imported stays
    with importlib.import_module("ftd.certificates").unread():
        daemon = importlib.import_module("ftd.daemon.serve")
    gc.freeze()
    gc.enable()
    daemon.run(loaded, listener, engine)
    return 0
