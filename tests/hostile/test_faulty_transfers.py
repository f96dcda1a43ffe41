"""Transfers through random faults, and random requests to the embedded registry, against two rules.

A pull ends with the model complete or with an FtdError that leaves no manifest and no blob of wrong bytes;
the next one, without faults, completes. The registry answers any request without a fault of its own (5xx) and
its store keeps only blobs of their names' bytes.
"""

import random
from collections import deque
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from faulty_registry import MANIFEST_V2, Faults, FaultyRegistry, digest_of, files_in, ftw_config, manifest_of
from yarl import URL

from ftd.config import RegistryConfig
from ftd.errors import FtdError
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.server import make_app
from ftd.registry.store import Store

LIMITS = Limits(
    attempts=3, backoff_s=0.0, connect_s=5.0, stall_s=0.2, stream_bytes=64 << 10, part_bytes=32 << 10,
    min_part_bytes=8 << 10,
)  # fmt: skip


def faults_of(rng: random.Random) -> Faults:
    """Return faults of which each is there with a probability of a third."""
    faults = Faults()
    if rng.random() < 0.33:
        faults.cut_every, faults.num_cuts = rng.randint(1, 40_000), rng.randint(1, 12)
    if rng.random() < 0.33:
        faults.flip_at, faults.num_flips = rng.randint(0, 200_000), rng.randint(1, 6)
    if rng.random() < 0.33:
        faults.statuses = deque(rng.choices([429, 500, 503, 404, 403, 416, 204, 301], k=rng.randint(1, 5)))
    if rng.random() < 0.2:
        faults.ignore_range = True
    if rng.random() < 0.2:
        faults.shift_content_range = rng.choice([-1, 1, 4096, 1 << 40])
    if rng.random() < 0.1:
        faults.stall_after, faults.num_stalls = rng.randint(0, 50_000), 1
    return faults


def wrong_blobs(folder: Path) -> list[str]:
    """Return the files that stand under a blob's name without its bytes."""
    names = [name for name in files_in(folder) if name.startswith("sha256-") and len(name) == 71]
    return [name for name in names if digest_of((folder / name).read_bytes()).replace(":", "-") != name]


@pytest.mark.parametrize("seed", range(24))
async def test_a_pull_through_faults_is_whole_or_nothing(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    registry, store = FaultyRegistry(), Store(tmp_path / "models")
    await registry.start()
    try:
        layer = rng.randbytes(rng.choice([0, 1, 5_000, 150_000, 300_001]))
        config = ftw_config(layer, 64 << 10) if rng.random() < 0.5 else b"{}"
        name = registry.add(config, [layer, rng.randbytes(3_000)])
        client = RegistryClient(
            store, RegistryConfig(models_dir=store.models_dir), key_dir=tmp_path / "keys", limits=LIMITS
        )
        registry.faults = faults_of(rng)
        try:
            await finish(client, name)
        except FtdError:
            assert not store.has(name)
        else:
            assert store.has(name)
        assert wrong_blobs(store.blobs.folder) == []
        registry.faults = Faults()
        await finish(client, name)
        assert store.read(name).raw == registry.manifests["library/m:latest"]
        assert {digest_of(config), digest_of(layer)} <= {
            each.replace("-", ":") for each in files_in(store.blobs.folder)
        }
        assert wrong_blobs(store.blobs.folder) == []
    finally:
        await registry.stop()


async def finish(client: RegistryClient, name: ModelName) -> None:
    """Pull; raise FtdError where it ends with one."""
    async for _ in client.pull(name, True, True):
        pass


WORDS = [
    "", "library", "m", "latest", "..", "%2e%2e", "%00", "a" * 300, "manifests", "blobs", "uploads", "tags",
    "list", "sha256:" + "a" * 64, digest_of(b"hello"), "sha512:" + "b" * 128, "é", "a b", "UPPER",
    "_catalog", "-", "%zz",
]  # fmt: skip
BODIES = [
    b"", b"hello", b"{}", b"[]", b"{" * 4_000, b"\xff" * 100, manifest_of(b"hello", [b"hello"]),
    manifest_of(b"hello", [b"hello"]).replace(b"5", b"-5"), b'{"schemaVersion": 1e999}', b"null",
]  # fmt: skip
HEADERS = {
    "Content-Range": ["0-4", "5-1", "x", "0-99999999999999999999", "-1-4"],
    "Range": ["bytes=0-1", "bytes=9-", "bytes=-0", "bytes=5-1", "lines=1-2", "bytes=" + "9" * 400],
    "Content-Type": [MANIFEST_V2, "text/plain", "application/octet-stream", "x", MANIFEST_V2 + "; a=\u00e9"],
    "Accept": ["*/*", "x" * 1_000, ""],
    "If-None-Match": ["*", '"x"'],
}  # fmt: skip


def path_of(rng: random.Random, locations: list[str]) -> str:
    """Return the path of a known pattern with random words in it, or of random words."""
    if locations and rng.random() < 0.3:
        return rng.choice(locations)
    name = "/".join(rng.choices(WORDS[1:4], k=2))
    word = rng.choice(WORDS)
    return rng.choice(
        [
            f"/v2/{name}/manifests/{word}", f"/v2/{name}/blobs/{word}", f"/v2/{name}/blobs/uploads/",
            f"/v2/{name}/blobs/uploads/{word}", f"/v2/{name}/blobs/uploads/?digest={word}&mount={word}",
            f"/v2/{name}/tags/list?n={rng.choice(['1', '-1', 'x', '9' * 9])}&last={word}", "/v2/_catalog?n=0",
            "/v2/" + "/".join(rng.choices(WORDS, k=rng.randint(1, 6))),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
async def test_the_registry_answers_anything(seed: int, tmp_path: Path) -> None:
    rng, store, locations = random.Random(seed), Store(tmp_path / "models"), []
    runner = web.AppRunner(make_app(store), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
            for _ in range(250):
                path, method = (
                    path_of(rng, locations),
                    rng.choice(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
                )
                headers = {
                    key: rng.choice(HEADERS[key]) for key in rng.sample(list(HEADERS), rng.randint(0, 3))
                }
                if "uploads/" in path and rng.random() < 0.5:
                    path += ("&" if "?" in path else "?") + "digest=" + rng.choice(WORDS)
                async with http.request(
                    method, path, data=rng.choice(BODIES), headers=headers, allow_redirects=False
                ) as response:
                    await response.read()
                    assert response.status < 500, (method, path, headers, response.status)
                    if response.status in (201, 202) and "Location" in response.headers:
                        locations.append(URL(response.headers["Location"]).path_qs)
        assert wrong_blobs(store.blobs.folder) == []
    finally:
        await runner.cleanup()
