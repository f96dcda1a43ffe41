"""``python -m ftd.engine FD [LOG_LEVEL]``: the engine process, see ``worker``."""

import gc
import importlib
import sys

gc.disable()  # what is imported stays: looking for garbage in it is a tenth of the start
worker = importlib.import_module("ftd.engine.worker")
gc.freeze()
gc.enable()
sys.exit(worker.main(sys.argv[1:]))
