"""One blob on its way to a registry: in acknowledged parts, going on from where the registry says it is.

The registry's own count is the truth: after a broken link or a 416 the upload asks for its status and goes
on at the offset it is given. A registry may send a part elsewhere (307); that place gets no credentials.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from ftd.errors import BlobNotFound, TransferError, UploadNotFound
from ftd.registry.blobs import BlobStore
from ftd.registry.connection import Connection, Limits, TransientError, retrying, status_error
from ftd.registry.manifest import Descriptor

_PIECE_BYTES = 2**20
_MAX_SESSIONS = 3
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,19})", re.ASCII)


class BlobUpload:
    """The transfer of one stored blob to one repository. Lives on one event loop; run once.

    ``completed`` never falls, even when the registry lost bytes and they are sent again.
    """

    def __init__(
        self,
        blobs: BlobStore,
        descriptor: Descriptor,
        repository: str,
        connection: Connection,
        limits: Limits,
    ) -> None:
        self.completed = 0
        self._digest = descriptor.digest
        self._path = blobs.path(descriptor.digest)
        self._size = descriptor.size
        self._base = connection.source.url(f"/v2/{repository}/blobs/")
        self._connection = connection
        self._limits = limits
        self._location = self._base
        self._part_md5s: list[bytes] = []
        if blobs.size(self._digest) != self._size:
            raise BlobNotFound(f"blob on disk has another size: {self._digest}", "pull the model again")

    async def run(self, mount_from: str = "") -> None:
        """Bring the blob to the registry, unless it has it or can mount it from the given repository."""
        if not await retrying(self._limits, self._is_there):
            await self._upload(mount_from)
        self.completed = self._size

    async def _upload(self, mount_from: str) -> None:
        for _ in range(_MAX_SESSIONS):
            try:
                if await retrying(self._limits, lambda: self._start(mount_from)):
                    return
                await self._send_parts()
                await retrying(self._limits, self._commit)
                return
            except UploadNotFound:
                # The session is gone; perhaps because the commit went through and its answer was lost.
                if await retrying(self._limits, self._is_there):
                    return
        raise TransferError(f"registry forgets uploads: {self._digest}")

    async def _is_there(self) -> bool:
        url = self._base / self._digest
        async with self._connection.request("HEAD", url) as response:
            if response.status in (200, 404):
                return response.status == 200
            raise await status_error(response, f"blob {self._digest}")

    async def _start(self, mount_from: str) -> bool:
        """Open a session; return True if the registry mounted the blob instead."""
        query = f"?{urlencode({'mount': self._digest, 'from': mount_from})}" if mount_from else ""
        url = URL(f"{self._base}uploads/{query}", encoded=True)
        self._part_md5s.clear()
        async with self._connection.request("POST", url, headers={"Content-Length": "0"}) as response:
            if response.status == 201 and mount_from:
                return True
            if response.status != 202:
                raise await status_error(response, f"upload of {self._digest}")
            self._take_location(url, response)
            return False

    async def _send_parts(self) -> None:
        # Losses are never forgiven: a registry that takes parts and loses them would be sent them for ever
        offset = failures = losses = 0
        while offset < self._size:
            before, failure = offset, None
            try:
                offset = await self._send_part(
                    offset, min(offset + self._limits.upload_part_bytes, self._size)
                )
            except TransientError as exc:
                failure = exc
            if offset <= before:
                failures += 1
                if max(failures, losses) >= self._limits.attempts:
                    reason = failure or TransientError(f"registry keeps {offset} bytes of {self._size}")
                    raise TransferError(f"max retries exceeded: {reason.message}", reason.hint) from failure
                await asyncio.sleep(self._limits.pause_s(failures))
            if failure is not None:
                offset = await retrying(self._limits, partial(self._ask_offset, before))
            losses += offset < before
            if offset > before:
                failures = 0

    async def _send_part(self, start: int, end: int) -> int:
        """Send one part; return where the registry is afterwards."""
        headers = {
            "Content-Length": str(end - start),
            "Content-Range": f"{start}-{end - 1}",
            "Content-Type": "application/octet-stream",
            "X-Redirect-Uploads": "1",
        }
        async with self._connection.request(
            "PATCH", self._location, headers=headers, body=lambda: self._read(start, end), follow=False
        ) as response:
            if response.status in (202, 204, 201):
                self._take_location(self._location, response)
                offset = self._offset_of(response, end)
                return end if offset is None else offset
            if response.status != 307:
                await self._raise_part_error(response, start)
            target = self._connection.redirected(self._location, response.headers.get("Location", ""))
            next_location = response.headers.get("Docker-Upload-Location", "")
        await self._put_elsewhere(target, start, end)
        if next_location:
            self._location = self._connection.redirected(self._location, next_location)
        return end

    async def _raise_part_error(self, response: aiohttp.ClientResponse, start: int) -> None:
        if response.status == 404:
            raise UploadNotFound(f"registry does not know the upload any more: {self._digest}")
        if response.status == 416:
            raise TransientError(f"registry is not at offset {start} of the upload: {self._digest}")
        raise await status_error(response, f"upload of {self._digest}")

    async def _put_elsewhere(self, target: URL, start: int, end: int) -> None:
        headers = {"Content-Length": str(end - start)}
        async with self._connection.request(
            "PUT", target, headers=headers, body=lambda: self._read(start, end), follow=False
        ) as response:
            if response.status not in (200, 201, 202, 204):
                raise await status_error(response, f"upload of {self._digest}")
        self._part_md5s.append(await asyncio.to_thread(self._md5, start, end))

    def _md5(self, start: int, end: int) -> bytes:
        md5 = hashlib.md5(usedforsecurity=False)
        with self._path.open("rb") as file:
            file.seek(start)
            while start < end and (data := file.read(min(_PIECE_BYTES, end - start))):
                md5.update(data)
                start += len(data)
        return md5.digest()

    async def _ask_offset(self, before: int) -> int:
        """Ask the registry how far the upload is."""
        async with self._connection.request("GET", self._location, follow=False) as response:
            if response.status not in (200, 202, 204):
                await self._raise_part_error(response, before)
            self._take_location(self._location, response)
            offset = self._offset_of(response, before)
            if offset is None:
                raise TransferError(f"registry does not say how far the upload is: {self._digest}")
            return offset

    def _offset_of(self, response: aiohttp.ClientResponse, expected: int) -> int | None:
        """Return how many bytes the registry says it has; None if it does not."""
        match = _RANGE.fullmatch(response.headers.get("Range", ""))
        if match is None:
            return None
        # "0-0" is how registries write both nothing and one byte.
        offset = int(match[1]) + 1 if int(match[1]) or expected == 1 else 0
        if offset > self._size:
            raise TransferError(f"registry has {offset} bytes of {self._size}: {self._digest}")
        self.completed = max(self.completed, offset)
        return offset

    async def _commit(self) -> None:
        query = {"digest": self._digest}
        if self._part_md5s:
            joined = hashlib.md5(b"".join(self._part_md5s), usedforsecurity=False).hexdigest()
            query["etag"] = f"{joined}-{len(self._part_md5s)}"
        headers = {"Content-Length": "0"}
        # The location may be signed as it is spelt, so its own query is not written anew.
        joint = "&" if self._location.raw_query_string else "?"
        url = URL(f"{self._location}{joint}{urlencode(query)}", encoded=True)
        async with self._connection.request("PUT", url, headers=headers, follow=False) as response:
            if response.status == 404:
                raise UploadNotFound(f"registry does not know the upload any more: {self._digest}")
            if response.status not in (201, 204):
                raise await status_error(response, f"upload of {self._digest}")

    def _take_location(self, url: URL, response: aiohttp.ClientResponse) -> None:
        location = response.headers.get("Docker-Upload-Location") or response.headers.get("Location")
        if location:
            self._location = self._connection.redirected(url, location)
        elif self._location == self._base:
            raise TransferError(f"registry gave no upload location: {self._digest}")

    async def _read(self, start: int, end: int) -> AsyncIterator[bytes]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while start < end:
                data = await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, end - start), start)
                if not data:
                    raise TransferError(f"blob became shorter while it was sent: {self._digest}")
                yield data
                start += len(data)
                self.completed = max(self.completed, start)
        finally:
            os.close(fd)
