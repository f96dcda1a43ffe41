"""Work on a store that is killed at every step: at the n-th call that changes a file, for n = 1, 2, 3 …

    python crash_steps.py create|pull FOLDER STRIDE     every STRIDE-th step; prints what is wrong, and "done"

A killed process keeps what it has written, so a store must hold no blob of other bytes than its digest and no
model that lacks a blob, whenever that was; and the same work, begun again, must end as if nothing had been.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import checkpoint_bytes
from faulty_registry import FaultyRegistry, ftw_config

from ftd.chat.renderer import Renderer
from ftd.config import RegistryConfig
from ftd.daemon.create import create
from ftd.daemon.create_request import check_request
from ftd.ftw.writer import FtwWriter
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.store import Store

STEPS = (
    *("open", "write", "pwritev", "fsync", "fdatasync", "ftruncate", "close"),
    *("rename", "unlink", "link", "utime", "mkdir", "rmdir"),
)
TWO_WEEKS_S = 15 * 86400
Work = Callable[[Path], None]


def die_at(step: int) -> None:
    """Kill this process before the ``step``-th call of ``STEPS``; every other write does half of it first."""
    lock, count = threading.Lock(), 0

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                if count == step:
                    if name == "write" and step % 2:
                        call(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counting

    for name in STEPS:
        setattr(os, name, counted(name))


def run(work: Work, root: Path, step: int = 0) -> bool:
    """Do the work in a child that is killed at ``step`` (0: never); say whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            if step:
                die_at(step)
            work(root)
            os._exit(0)
        except BaseException as exc:
            print(f"step {step}: {exc!r}", flush=True)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    return os.WIFEXITED(status)


def check(root: Path, step: int) -> None:
    """Print what is wrong with the store."""
    store = Store(root)
    for digest in store.blobs.digests():
        if not store.blobs.verify(digest):
            print(f"step {step}: other bytes in {digest}")
    for model in store.list():
        for entry in model.manifest.blobs:
            if not store.blobs.has(entry.digest):
                print(f"step {step}: {model.name.display} lacks {entry.digest}")


def files(root: Path) -> list[str]:
    """Return all files of a store that two weeks later are still there."""
    Store(root).sweep(now_s=time.time() + TWO_WEEKS_S)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def try_all(work: Work, folder: Path, stride: int) -> None:
    """Kill the work at every ``stride``-th step, then once more elsewhere, and see it end at last."""
    assert run(work, folder / "whole")
    wanted, root = files(folder / "whole"), folder / "killed"
    step = 1
    while not run(work, root, step):
        check(root, step)
        if not run(work, root, 1 + 37 * step % 150):
            check(root, step)
        assert run(work, root)
        check(root, step)
        if (found := files(root)) != wanted:
            print(f"step {step}: {sorted(set(found) ^ set(wanted))}")
        shutil.rmtree(root)
        step += stride
    print("done", step)


def creating(folder: Path) -> Work:
    """Return what creates a mixture of experts of many blobs, each of several chunks."""
    FtwWriter.__init__.__defaults__ = (8192, 1, None)  # chunks, bytes of expert blobs, key
    sources = checkpoint_bytes.save(folder / "source", *checkpoint_bytes.mixtral())
    contents = {name: path.read_bytes() for name, path in sources.items()}

    async def all_of(store: Store, uploads: dict[str, str]) -> None:
        request = check_request({"model": "m", "files": uploads, "system": "be brief"})
        async for _ in create(store, request, cast(Renderer, None)):  # no template, so none is rendered
            pass

    def work(root: Path) -> None:
        store = Store(root)
        store.sweep()
        uploads = {name: store.blobs.put(data)[0] for name, data in contents.items()}
        asyncio.run(all_of(store, uploads))

    return work


def serve(pipe: int, config: bytes, layers: list[bytes]) -> None:
    """Serve a model until this process is killed; the port goes into the pipe."""

    async def forever() -> None:
        registry = FaultyRegistry()
        await registry.start()
        registry.add(config, layers)
        os.write(pipe, f"{registry.port}\n".encode())
        await asyncio.Event().wait()

    asyncio.run(forever())


def pulling(folder: Path, port: int) -> Work:
    """Return what pulls the model of a registry at ``port``."""
    limits = Limits(
        attempts=3, backoff_s=0.0, stream_bytes=1 << 16, part_bytes=1 << 16, min_part_bytes=1 << 14
    )

    async def all_of(store: Store) -> None:
        config = RegistryConfig(models_dir=store.models_dir)
        client = RegistryClient(store, config, key_dir=folder / "keys", limits=limits)
        name = ModelName(f"127.0.0.1:{port}", "library", "m", "latest")
        async for _ in client.pull(name, insecure=True, allow_loopback=True):
            pass

    def work(root: Path) -> None:
        store = Store(root)
        store.sweep()
        asyncio.run(all_of(store))

    return work


def main() -> None:
    """Do what the command line says."""
    what, folder, stride = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if what == "create":
        try_all(creating(folder), folder, stride)
        return
    layer = bytes(range(251)) * 1200
    reader, writer = os.pipe()
    server = os.fork()
    if server == 0:
        serve(writer, ftw_config(layer, 65536), [layer, b"template"])
    try:
        try_all(pulling(folder, int(os.read(reader, 16))), folder, stride)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


if __name__ == "__main__":
    main()
