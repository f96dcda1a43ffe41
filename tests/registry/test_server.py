"""The served protocol, request by request as the OCI specification and Ollama's client send them."""

import asyncio
import errno
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from faulty_registry import MANIFEST_V2, digest_of, files_in, manifest_of

from ftd.names import ModelName, parse_name
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.server import make_app
from ftd.registry.store import Store

Served = tuple[Store, int]
HELLO = digest_of(b"hello")
OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{served[1]}", auto_decompress=False) as session:
        yield session


async def start_upload(http: aiohttp.ClientSession, name: str = "library/m") -> str:
    async with http.post(f"/v2/{name}/blobs/uploads/") as response:
        assert response.status == 202
        return response.headers["Location"]


async def put_blob(http: aiohttp.ClientSession, data: bytes, name: str = "library/m") -> None:
    location = await start_upload(http, name)
    async with http.put(f"{location}?digest={digest_of(data)}", data=data, headers=OCTETS) as response:
        assert response.status == 201


async def put_model(http: aiohttp.ClientSession, name: str, tag: str, *contents: bytes) -> bytes:
    for data in contents:
        await put_blob(http, data, name)
    raw = manifest_of(contents[0], contents[1:])
    async with http.put(
        f"/v2/{name}/manifests/{tag}", data=raw, headers={"Content-Type": MANIFEST_V2}
    ) as response:
        assert response.status == 201
    return raw


async def error_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    document = json.loads(await response.read())
    assert list(document["errors"][0]) == ["code", "message", "detail"]
    assert response.headers["Content-Type"] == "application/json"
    return response.status, document["errors"][0]["code"]


async def test_ping_says_which_protocol_it_is(http: aiohttp.ClientSession) -> None:
    for path in ("/v2/", "/v2"):
        async with http.get(path) as response:
            assert (response.status, await response.read()) == (200, b"{}")
            assert response.headers["Docker-Distribution-Api-Version"] == "registry/2.0"


async def test_a_monolithic_upload_in_one_request(served: Served, http: aiohttp.ClientSession) -> None:
    url = f"/v2/library/m/blobs/uploads/?digest={HELLO}"
    async with http.post(url, data=b"hello", headers=OCTETS) as response:
        assert response.status == 201
        assert response.headers["Location"] == f"http://127.0.0.1:{served[1]}/v2/library/m/blobs/{HELLO}"
        assert response.headers["Docker-Content-Digest"] == HELLO
    async with http.post(url.replace(HELLO, digest_of(b"x")), data=b"hello", headers=OCTETS) as response:
        assert await error_of(response) == (400, "DIGEST_INVALID")
    assert files_in(served[0].blobs.folder) == [HELLO.replace(":", "-")]


async def test_a_chunked_upload_is_told_where_it_is_at_each_step(
    served: Served, http: aiohttp.ClientSession
) -> None:
    async with http.post("/v2/library/m/blobs/uploads/") as response:
        location = response.headers["Location"]
        upload_id = response.headers["Docker-Upload-UUID"]
        assert location == f"http://127.0.0.1:{served[1]}/v2/library/m/blobs/uploads/{upload_id}"
        assert response.headers["Range"] == "0-0"
    for data, content_range, held in ((b"hel", "0-2", "0-2"), (b"lo", "bytes 3-4/5", "0-4")):
        async with http.patch(
            location, data=data, headers={**OCTETS, "Content-Range": content_range}
        ) as response:
            assert (response.status, response.headers["Range"]) == (202, held)
            assert response.headers["Location"] == location
    async with http.get(location) as response:
        assert (response.status, response.headers["Range"]) == (204, "0-4")
    async with http.put(f"{location}?digest={HELLO}&etag=abc-2") as response:
        assert response.status == 201
    async with http.get(location) as response:
        assert await error_of(response) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert served[0].blobs.read(HELLO) == b"hello"


@pytest.mark.parametrize("content_range", ["0-2", "2-4", "4-6", "99-101"])
async def test_a_part_out_of_order_is_refused_with_the_true_range(
    http: aiohttp.ClientSession, content_range: str
) -> None:
    location = await start_upload(http)
    async with http.patch(location, data=b"hel", headers={"Content-Range": "0-2"}) as response:
        assert response.status == 202
    for method, url in (("PATCH", location), ("PUT", f"{location}?digest={HELLO}")):
        async with http.request(
            method, url, data=b"xyz", headers={"Content-Range": content_range}
        ) as response:
            assert response.headers["Range"] == "0-2"
            assert response.headers["Location"] == location
            assert await error_of(response) == (416, "BLOB_UPLOAD_INVALID")
    async with http.put(
        f"{location}?digest={HELLO}", data=b"lo", headers={"Content-Range": "3-4"}
    ) as response:
        assert response.status == 201


@pytest.mark.parametrize("content_range", ["", "x", "0", "-1-3", "0-3", "bytes 0-9", "٠-٢", "9" * 30 + "-1"])
async def test_a_content_range_that_is_none_is_refused(
    http: aiohttp.ClientSession, content_range: str
) -> None:
    location = await start_upload(http)
    async with http.patch(location, data=b"hel", headers={"Content-Range": content_range}) as response:
        assert (await error_of(response))[0] == 400
    async with http.get(location) as response:
        assert response.headers["Range"] == "0-0"


async def test_a_wrong_or_malformed_digest_makes_no_blob(served: Served, http: aiohttp.ClientSession) -> None:
    for digest in (digest_of(b"x"), "sha256:x", "sha512:" + "0" * 128, "sha256:../../x", ""):
        location = await start_upload(http)
        async with http.put(location, params={"digest": digest}, data=b"hello") as response:
            assert await error_of(response) == (400, "DIGEST_INVALID")
    assert list(served[0].blobs.digests()) == []


@pytest.mark.parametrize("num_bytes", [10, 5 << 20])
async def test_a_full_disk_is_told_apart_and_leaves_no_bytes(
    num_bytes: int, served: Served, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    location = await start_upload(http)
    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", full)
        async with http.patch(location, data=io.BytesIO(bytes(num_bytes))) as response:
            assert await error_of(response) == (507, "UNKNOWN")
    assert files_in(served[0].blobs.folder) == []
    async with http.get(location) as response:
        assert await error_of(response) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_an_upload_can_be_cancelled(served: Served, http: aiohttp.ClientSession) -> None:
    location = await start_upload(http)
    async with http.delete(location) as response:
        assert response.status == 204
    async with http.patch(location, data=b"x") as response:
        assert await error_of(response) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert files_in(served[0].blobs.folder) == []


async def test_what_came_before_a_broken_link_stays(served: Served, http: aiohttp.ClientSession) -> None:
    location = await start_upload(http)
    path = location.removeprefix(f"http://127.0.0.1:{served[1]}")
    reader, writer = await asyncio.open_connection("127.0.0.1", served[1])
    writer.write(f"PATCH {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhel".encode())
    await writer.drain()
    writer.write_eof()
    assert b"202" not in await reader.read()
    writer.close()
    for _ in range(1000):
        async with http.get(location) as response:
            if response.headers["Range"] == "0-2":
                return
    raise AssertionError("the bytes never arrived")


async def test_an_upload_outlives_a_restart(served: Served, http: aiohttp.ClientSession) -> None:
    location = await start_upload(http)
    async with http.patch(location, data=b"hel") as response:
        assert response.status == 202
    runner = web.AppRunner(make_app(served[0]), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    again = location.replace(f":{served[1]}", f":{runner.addresses[0][1]}")
    async with http.put(f"{again}?digest={HELLO}", data=b"lo", headers={"Content-Range": "3-4"}) as response:
        assert response.status == 201
    await runner.cleanup()


async def test_a_blob_is_mounted_if_it_is_there_and_uploaded_if_not(http: aiohttp.ClientSession) -> None:
    await put_blob(http, b"hello", "library/a")
    url = f"/v2/library/b/blobs/uploads/?mount={HELLO}&from=library/a"
    async with http.post(url) as response:
        assert response.status == 201
        assert response.headers["Location"].endswith(f"/v2/library/b/blobs/{HELLO}")
    async with http.post(url.replace(HELLO, digest_of(b"other"))) as response:
        assert response.status == 202


async def test_a_blob_says_its_length_digest_and_where_it_is(
    served: Served, http: aiohttp.ClientSession
) -> None:
    await put_blob(http, b"hello")
    url = f"/v2/library/m/blobs/{HELLO}"
    for method, body in (("HEAD", b""), ("GET", b"hello")):
        async with http.request(method, url) as response:
            assert (response.status, await response.read()) == (200, body)
            assert response.headers["Content-Length"] == "5"
            assert response.headers["Docker-Content-Digest"] == HELLO
            assert response.headers["Accept-Ranges"] == "bytes"
            assert response.headers["Location"] == f"http://127.0.0.1:{served[1]}{url}"


async def test_ranges_of_a_blob_are_served(http: aiohttp.ClientSession) -> None:
    await put_blob(http, b"hello")
    url = f"/v2/library/m/blobs/{HELLO}"
    for text, body, stated in (
        ("bytes=1-3", b"ell", "1-3"),
        ("bytes=3-", b"lo", "3-4"),
        ("bytes=-2", b"lo", "3-4"),
    ):
        async with http.get(url, headers={"Range": text}) as response:
            assert (response.status, await response.read()) == (206, body)
            assert response.headers["Content-Range"] == f"bytes {stated}/5"
    async with http.get(url, headers={"Range": "bytes=5-9"}) as response:
        assert response.status == 416


async def test_a_manifest_comes_back_byte_for_byte_by_tag_and_by_digest(http: aiohttp.ClientSession) -> None:
    raw = await put_model(http, "ns/m", "8b", b"{}", b"hello")
    for reference in ("8b", digest_of(raw)):
        for method, body in (("GET", raw), ("HEAD", b"")):
            async with http.request(method, f"/v2/ns/m/manifests/{reference}") as response:
                assert (response.status, await response.read()) == (200, body)
                assert response.headers["Content-Type"] == MANIFEST_V2
                assert response.headers["Docker-Content-Digest"] == digest_of(raw)
                assert response.headers["Content-Length"] == str(len(raw))


async def test_a_manifest_put_by_digest_is_found_and_not_listed(http: aiohttp.ClientSession) -> None:
    raw = await put_model(http, "ns/m", "8b", b"{}", b"hello")
    other = raw + b"\n"
    async with http.put(f"/v2/ns/m/manifests/{digest_of(raw)}", data=other) as response:
        assert await error_of(response) == (400, "DIGEST_INVALID")
    async with http.put(f"/v2/ns/m/manifests/{digest_of(other)}", data=other) as response:
        assert response.status == 201
    async with http.get(f"/v2/ns/m/manifests/{digest_of(other)}") as response:
        assert await response.read() == other
    async with http.get("/v2/ns/m/tags/list") as response:
        assert await response.json() == {"name": "ns/m", "tags": ["8b"]}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "MANIFEST_INVALID"),
        (b"", "MANIFEST_INVALID"),
        (manifest_of(b"{}", [b"absent"]), "MANIFEST_BLOB_UNKNOWN"),
        (manifest_of(b"{}", []).replace(b'"size": 2', b'"size": 3'), "UNSUPPORTED"),
        (manifest_of(b"{}", []).replace(b"sha256:", b"sha512:"), "MANIFEST_INVALID"),
        (b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}',
         "MANIFEST_INVALID"),
        (b" " * (4 * 2**20 + 1), "MANIFEST_INVALID"),
    ],
)  # fmt: skip
async def test_a_manifest_that_cannot_be_true_is_refused(
    served: Served, http: aiohttp.ClientSession, raw: bytes, code: str
) -> None:
    await put_blob(http, b"{}")
    async with http.put("/v2/library/m/manifests/latest", data=io.BytesIO(raw)) as response:
        assert await error_of(response) == (400, code)
    assert served[0].list() == []


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (f"library/m/blobs/{HELLO}", (404, "BLOB_UNKNOWN")),
        ("library/m/blobs/sha256:x", (400, "DIGEST_INVALID")),
        ("library/m/blobs/sha256:..%2f..%2fx", (400, "DIGEST_INVALID")),
        ("library/m/manifests/latest", (404, "MANIFEST_UNKNOWN")),
        (f"library/m/manifests/{HELLO}", (404, "MANIFEST_UNKNOWN")),
        ("library/m/manifests/sha256:x", (400, "DIGEST_INVALID")),
        ("library/m/manifests/-x", (400, "NAME_INVALID")),
        ("library/m/tags/list", (404, "NAME_UNKNOWN")),
        ("a/b/c/tags/list", (400, "NAME_INVALID")),
        ("a/b%2f..%2fc/tags/list", (400, "NAME_INVALID")),
        ("../m/tags/list", (404, "UNSUPPORTED")),
        ("a/../b/tags/list", (404, "NAME_UNKNOWN")),
        (".a/b/tags/list", (400, "NAME_INVALID")),
        ("library/m/unknown", (404, "UNSUPPORTED")),
        ("library/m/blobs/uploads/xyz", (404, "BLOB_UPLOAD_UNKNOWN")),
    ],
)
async def test_what_is_not_there_or_not_a_name_has_its_code(
    http: aiohttp.ClientSession, path: str, error: tuple[int, str]
) -> None:
    async with http.get(f"/v2/{path}") as response:
        assert await error_of(response) == error


async def test_a_wrong_verb_lists_the_right_ones(http: aiohttp.ClientSession) -> None:
    async with http.delete("/v2/library/m/manifests/latest") as response:
        assert sorted(response.headers["Allow"].split(",")) == ["GET", "HEAD", "PUT"]
        assert await error_of(response) == (405, "UNSUPPORTED")


async def test_one_part_names_are_of_the_default_namespace(
    served: Served, http: aiohttp.ClientSession
) -> None:
    raw = await put_model(http, "m", "latest", b"{}", b"hello")
    assert served[0].read(parse_name("m")).raw == raw
    async with http.get("/v2/library/m/manifests/latest") as response:
        assert await response.read() == raw


async def pages(http: aiohttp.ClientSession, url: str, key: str) -> list[list[str]]:
    found = []
    while url:
        async with http.get(url) as response:
            found.append((await response.json())[key])
            link = response.headers.get("Link", "")
            assert link == "" or link.endswith('>; rel="next"')
            url = link[1:].partition(">")[0]
    return found


async def test_tags_and_repositories_come_in_pages(http: aiohttp.ClientSession) -> None:
    for name, tag in (("ns/m", "c"), ("ns/m", "a"), ("ns/m", "b"), ("ns/l", "x"), ("library/z", "x")):
        await put_model(http, name, tag, b"{}")
    assert await pages(http, "/v2/ns/m/tags/list?n=2", "tags") == [["a", "b"], ["c"]]
    assert await pages(http, "/v2/ns/m/tags/list?last=b", "tags") == [["c"]]
    assert await pages(http, "/v2/ns/m/tags/list?n=0", "tags") == [[]]
    assert await pages(http, "/v2/_catalog?n=1", "repositories") == [["library/z"], ["ns/l"], ["ns/m"]]
    async with http.get("/v2/_catalog?n=x") as response:
        assert (await error_of(response))[0] == 400


async def test_models_of_other_hosts_are_not_served(served: Served, http: aiohttp.ClientSession) -> None:
    await put_model(http, "ns/m", "a", b"{}")
    served[0].copy(parse_name("ns/m:a"), ModelName("other.example", "ns", "secret", "a"))
    assert await pages(http, "/v2/_catalog", "repositories") == [["ns/m"]]
    async with http.get("/v2/ns/secret/manifests/a") as response:
        assert response.status == 404


async def test_what_this_machine_has_can_be_pulled_from_it(
    served: Served, http: aiohttp.ClientSession
) -> None:
    """Models whose name says no registry are served; those of another registry are not."""
    store, _ = served
    config = Descriptor("t", *store.blobs.put(b"{}"))
    for name in ("m", "other.example/library/n"):
        store.write(parse_name(name), build_manifest(config, []))
    async with http.get("/v2/library/m/manifests/latest") as response:
        assert (response.status, await response.read()) == (200, store.read(parse_name("m")).raw)
    async with http.get(f"/v2/library/m/blobs/{config.digest}") as response:
        assert (response.status, await response.read()) == (200, b"{}")
    async with http.get("/v2/library/n/manifests/latest") as response:
        assert response.status == 404
