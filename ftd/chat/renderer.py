"""The daemon's hold on the render worker: starts it, asks it, kills it when a template takes too long.

One worker for each kind of template, started on first use; the event loop never waits for a template. A
Renderer belongs to one event loop; ``close`` ends the processes.
"""

import asyncio
import json
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import ftd
from ftd import environment, log
from ftd.chat.beside import beside, json_pieces
from ftd.chat.render_frames import HEADER, MAX_FRAME_BYTES
from ftd.errors import InvalidTemplate

_log = logging.getLogger(__name__)

START_LIMIT_S = 60.0
RENDER_LIMIT_S = 2.0


class TemplateRefused(InvalidTemplate):
    """The template would not render this conversation; bent into another shape it might."""


class Renderer:
    """Runs templates in processes of their own, one of a kind at a time."""

    def __init__(self, render_limit_s: float = RENDER_LIMIT_S) -> None:
        self._workers = {kind: _Worker(kind, render_limit_s) for kind in ("jinja", "go")}

    async def __aenter__(self) -> "Renderer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def pid(self, kind: str) -> int | None:
        """Return the process id of a kind's worker, None while there is none."""
        return self._workers[kind].pid

    async def render(
        self, kind: str, source: str, variables: dict[str, Any], seal: str = "", num_chars: int = 0
    ) -> str:
        """Return the rendered text; raise TemplateRefused, or InvalidTemplate with what went wrong.

        ``num_chars``: of the variables, about.
        """
        request = {"op": "render", "kind": kind, "source": source, "variables": variables, "seal": seal}
        return str((await self._workers[kind].ask(request, num_chars))["text"])

    async def literals(self, kind: str, source: str) -> list[str]:
        """Return the texts that a template writes by itself; raise InvalidTemplate if it does not parse.

        Called early it has the worker started and the template compiled before they are needed.
        """
        reply = await self._workers[kind].ask({"op": "literals", "kind": kind, "source": source})
        return [str(text) for text in reply["literals"]]

    async def close(self) -> None:
        """End the workers."""
        for worker in self._workers.values():
            await worker.close()


class _Worker:
    """The process that runs templates of one kind, while there is one."""

    def __init__(self, kind: str, render_limit_s: float) -> None:
        self._kind = kind
        self._render_limit_s = render_limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def close(self) -> None:
        async with self._lock:
            await self._kill()

    async def ask(self, request: dict[str, Any], num_chars: int = 0) -> dict[str, Any]:
        """Return the reply to a request of about so many characters."""
        data = await beside(num_chars, _encoded, request)
        if len(data) > MAX_FRAME_BYTES:
            raise InvalidTemplate(f"conversation is too large to render: {len(data)} bytes")
        async with self._lock:
            process = await self._started()
            try:
                reply = await asyncio.wait_for(self._exchange(process, data), self._render_limit_s)
            except TimeoutError:
                await self._kill()
                raise InvalidTemplate(
                    f"template ran longer than {self._render_limit_s:g} s and was stopped"
                ) from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as exc:
                await self._kill()
                raise InvalidTemplate(f"template ended its process: {exc}") from exc
            except BaseException:  # cancelled: the answer would be taken for that of the next request
                await self._kill()
                raise
        if reply.get("status") == "ok":
            return reply
        text = str(reply.get("text", ""))
        if reply.get("status") == "refused":
            raise TemplateRefused(f"template refused the conversation: {text}")
        if reply.get("status") == "failed":
            raise TemplateRefused(f"template failed: {text}")
        verb = "does not parse" if reply.get("status") == "invalid" else "passed a limit"
        raise InvalidTemplate(f"template error: {verb}: {text}")

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        package = str(Path(ftd.__file__).parents[1])
        self._process = await asyncio.create_subprocess_exec(
            *(*environment.module_command("ftd.chat.render_worker"), self._kind),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": package, "PATH": os.defpath},
            start_new_session=True,
        )
        try:
            await asyncio.wait_for(self._read(self._process), START_LIMIT_S)
        except BaseException:  # cancelled, or it does not come up: the next request starts another
            await self._kill()
            raise
        _log.debug(log.fields("render worker started", kind=self._kind, pid=self._process.pid))
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, data: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        process.stdin.write(HEADER.pack(len(data)) + data)
        await process.stdin.drain()
        return await self._read(process)

    async def _read(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        (length,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {length} bytes")
        body = await process.stdout.readexactly(length)
        reply = await beside(length, json.loads, body)
        if not isinstance(reply, dict):
            raise ValueError("reply is not an object")
        return reply

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


def _encoded(request: dict[str, Any]) -> bytes:
    return json_pieces(request, lambda value: json.dumps(value).encode("ascii"))
