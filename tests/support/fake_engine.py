"""Commands of the scripted engine (fake_worker.py) and the control line by which a test drives it."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

WORKER = Path(__file__).with_name("fake_worker.py")


def fake_command(**script):
    """Command of a fake worker with this script (see fake_worker.py)."""
    return (sys.executable, str(WORKER), json.dumps(script))


@asynccontextmanager
async def controlling(folder):
    """A Control that listens; its workers come out of ``next_worker`` in the order they start."""
    control = Control(folder / "control.sock")
    await control.serve()
    try:
        yield control
    finally:
        await control.close()


class Control:
    """Listens for fake workers in control mode: reads what they received, tells them what to send."""

    def __init__(self, path):
        self.path = path
        self.workers = asyncio.Queue()
        self.writers = []

    async def serve(self):
        self.server = await asyncio.start_unix_server(self._accept, self.path)

    async def _accept(self, reader, writer):
        self.writers.append(writer)
        await self.workers.put(ControlledWorker(reader, writer))

    def command(self):
        return fake_command(control=str(self.path))

    async def next_worker(self):
        """Wait for the next worker to start and to be told to load."""
        worker = await self.workers.get()
        await worker.received("started")
        worker.load = await worker.received("load")
        return worker

    async def close(self):
        self.server.close()
        for writer in self.writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self.writers), return_exceptions=True)


class ControlledWorker:
    """One fake worker process in control mode."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def received(self, kind):
        """The next message the worker received; it must be of this kind."""
        value = json.loads(await self.reader.readline())
        assert value["type"] == kind, value
        return value

    def tell(self, **command):
        self.writer.write(json.dumps(command).encode() + b"\n")

    def send(self, kind, /, **values):
        self.tell(send={"type": kind, **values})

    def ready(self, context_tokens=4096):
        self.send(
            "ready",
            context_tokens=context_tokens,
            weight_bytes=1000,
            kv_bytes=200,
            workspace_bytes=30,
            num_threads=1,
            device="cpu",
            load_ns=5,
            kernels={},
        )

    def finish(self, request_id, reason="stop", output_tokens=0, **more):
        self.send(
            "finished",
            request_id=request_id,
            reason=reason,
            prompt_tokens=3,
            cached_tokens=1,
            output_tokens=output_tokens,
            queue_ns=1,
            prefill_ns=2,
            decode_ns=3,
            **more,
        )
