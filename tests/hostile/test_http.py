"""Bodies, encodings and connections that mean harm: a clear error, a daemon that lives, memory that stays."""

import asyncio
import functools
import gzip
import io
import json
import zlib

import psutil
import pytest
import pytest_asyncio
import zstandard
from live_daemon import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

POSTS = [
    *("/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show", "/api/copy", "/api/create"),
    *("/api/pull", "/api/push", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/api/tokenize", "/api/detokenize"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


async def send(daemon, path, data, **headers):
    response = await daemon.session.post(daemon.url + path, data=data, headers=headers)
    return response.status, await response.text()


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"model":' + b"[" * 100_000,
        b'{"model":{"a":1},"name":[]}',
        b'{"model":"\\ud800","source":"\\ud800","destination":"x","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"a b","messages":[1],"input":{"a":1},"prompt":{},"source":1}',
    ],
)
async def test_every_route_refuses_bad_bodies_with_a_json_error(daemon, path, data):
    status, text = await send(daemon, path, data)
    assert 400 <= status < 500, (status, text)
    assert json.loads(text)["error"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_any_content_type_is_read_as_json(daemon, content_type):
    body = json.dumps({"MODEL": "tiny", "Prompt": "x", "STREAM": False}) + " trailing"
    status, text = await send(daemon, "/api/generate", body, **{"Content-Type": content_type})
    assert status == 200 and json.loads(text)["response"] == "Hello, world"


async def test_compressed_body_is_read(daemon):
    data = gzip.compress(json.dumps({"model": "tiny", "prompt": "x", "stream": False}).encode())
    status, text = await send(daemon, "/api/generate", data, **{"Content-Encoding": "gzip"})
    assert status == 200 and json.loads(text)["response"] == "Hello, world"


@functools.cache
def bomb_of(encoding):
    """256 MiB of blanks in about one, or less."""
    if encoding == "zstd":
        return zstandard.compress(b" " * (256 << 20))
    packer = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    block = b" " * (1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(256)), packer.flush()])


@pytest.mark.parametrize(
    ("path", "encoding"),
    [
        pytest.param("/api/chat", "gzip", marks=pytest.mark.slow),
        pytest.param("/v1/responses", "deflate", marks=pytest.mark.slow),
        ("/api/chat", "zstd"),
    ],
)
async def test_compression_bomb_is_cut_off(daemon, path, encoding):
    bomb = bomb_of(encoding)
    process = psutil.Process()
    before = process.memory_info().rss
    status, text = await send(daemon, path, io.BytesIO(bomb), **{"Content-Encoding": encoding})
    assert status in (400, 413) and "error" in json.loads(text)
    assert process.memory_info().rss - before < 200 << 20


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_broken_compression_is_a_client_error(daemon, encoding):
    status, _ = await send(daemon, "/api/chat", b"not compressed at all", **{"Content-Encoding": encoding})
    assert status == 400
    assert (await daemon.get("/health")).status == 200


async def test_body_over_the_limit_is_refused(daemon):
    body = io.BytesIO(b'{"model":"tiny","prompt":"' + b"x" * (65 << 20) + b'"}')
    status, text = await send(daemon, "/api/generate", body)
    assert status == 413 and "error" in json.loads(text)


async def raw(daemon, data):
    """Send bytes as they are; return what comes back until the daemon closes."""
    port = int(daemon.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"HEAD /api/blobs/..%2f..%2fx HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_broken_http_is_a_client_error_and_harms_nobody(daemon, data):
    answer = await raw(daemon, data)
    assert b" 4" in answer.split(b"\r\n")[0], answer[:200]
    assert b"root:" not in answer
    assert (await daemon.get("/health")).status == 200


async def test_two_hosts_do_not_pass_the_host_check(daemon):
    answer = await raw(
        daemon,
        b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    assert b" 400 " in answer.split(b"\r\n")[0] or b" 403 " in answer.split(b"\r\n")[0]


async def test_foreign_host_in_the_request_line_is_refused(daemon):
    answer = await raw(
        daemon,
        b"GET http://evil.example/api/tags HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    assert b" 403 " in answer.split(b"\r\n")[0]


async def test_slow_headers_do_not_hold_others_up(daemon):
    port = int(daemon.url.rpartition(":")[2])
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    for _, writer in connections:
        writer.write(b"POST /api/chat HTTP/1.1\r\nHost: loc")
    assert (await daemon.json("/api/generate", {"model": "tiny", "prompt": "x", "stream": False}))["done"]
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in connections), return_exceptions=True)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e308},
        {"num_predict": 10**30},
        {"num_ctx": 10**12},
        {"num_ctx": -7},
        {"seed": 2**70},
        {"stop": ["x" * 70_000]},
        {"stop": "str"},
        {"top_k": -(10**9)},
        {"repeat_last_n": 10**9},
        {"num_thread": 10**9},
        {"num_keep": -5, "num_ctx": 4},
    ],
)
async def test_wild_options_answer_or_are_refused(daemon, options):
    body = {"model": "tiny", "prompt": "x", "stream": False, "options": options}
    response = await daemon.post("/api/generate", body)
    assert response.status in (200, 400), await response.text()
