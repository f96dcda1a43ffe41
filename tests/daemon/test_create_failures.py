"""Creates that fail, are left, or are killed: nothing is left behind, or what a later one goes on with."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from ftd.chat.renderer import Renderer
from ftd.daemon.create import create
from ftd.daemon.create_request import check_request
from ftd.daemon.modelinfo import MAX_TEXT_BYTES, read_model
from ftd.errors import (
    BlobNotFound,
    FtdError,
    InvalidCheckpoint,
    InvalidGguf,
    InvalidRequest,
    InvalidTemplate,
    ModelNotFound,
    Unsupported,
)
from ftd.ftw import import_gguf
from ftd.ftw.gguf import GgufFile
from ftd.ftw.writer import FtwWriter
from ftd.names import parse_name
from ftd.registry.store import Store
from tests.daemon.creating import MODEL, UNPARSED, files_in, made, upload, upload_checkpoint

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("nothing_unfinished")]


async def test_a_broken_checkpoint_leaves_nothing(store: Store, renderer: Renderer, tmp_path: Path) -> None:
    files = upload_checkpoint(store, tmp_path / "hf")
    del files["hf/model-00002-of-00002.safetensors"]
    with pytest.raises(InvalidCheckpoint, match=r"model-00002-of-00002\.safetensors is missing"):
        await made(store, renderer, files=files)
    assert store.list() == []


# More than a model is read with later
LONG = [{"role": "user", "content": "x" * (MAX_TEXT_BYTES // 2)}] * 2
BROKEN: dict[str, tuple[dict[str, Any], bytes, type[FtdError]]] = {
    "truncated": ({}, MODEL[:-1000], InvalidGguf),
    "header only": ({}, MODEL[:40], InvalidGguf),
    "no GGUF": ({}, b"PK\x03\x04 this is no model", InvalidRequest),
    "empty": ({}, b"", InvalidRequest),
    "Go template": ({"template": "{{ Prompt }}"}, MODEL, InvalidTemplate),
    "Jinja template": (
        {},
        UNPARSED,
        InvalidTemplate,
    ),
    "parameter": ({"parameters": {"num_ctx": "many"}}, MODEL, InvalidRequest),
    "long system": ({"system": "x" * (MAX_TEXT_BYTES + 1)}, MODEL, InvalidRequest),
    "long messages": ({"messages": LONG}, MODEL, InvalidRequest),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_nothing_is_left_after_a_failure(name: str, store: Store, renderer: Renderer) -> None:
    body, data, error = BROKEN[name]
    files = upload(store, data)
    with pytest.raises(error):
        await made(store, renderer, files=files, **body)
    assert files_in(store) == []
    assert store.list() == []


async def test_a_failed_overwrite_keeps_the_old_model(store: Store, renderer: Renderer) -> None:
    await made(store, renderer, files=upload(store))
    before = files_in(store), store.read(parse_name("m")).raw
    with pytest.raises(InvalidGguf):
        await made(store, renderer, files=upload(store, MODEL[:-1000]))
    assert (files_in(store), store.read(parse_name("m")).raw) == before


async def test_a_broken_template_can_be_replaced(store: Store, renderer: Renderer) -> None:
    await made(store, renderer, files=upload(store, UNPARSED), template="{{ .Prompt }}")
    assert read_model(store, parse_name("m")).template.text == "{{ .Prompt }}"


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_leaving_early_leaves_nothing(steps: int, store: Store, renderer: Renderer) -> None:
    operation = create(store, check_request({"model": "m", "files": upload(store)}), renderer)
    for _ in range(steps):
        await anext(operation)
    await operation.aclose()
    assert files_in(store) == []
    assert store.list() == []


async def test_missing_blobs_and_models_are_named(store: Store, renderer: Renderer) -> None:
    with pytest.raises(BlobNotFound, match="sha256:00"):
        await made(store, renderer, files={"model.gguf": "sha256:" + "0" * 64})
    with pytest.raises(ModelNotFound, match="nobody"):
        await made(store, renderer, **{"from": "nobody"})
    with pytest.raises(InvalidRequest, match="no files provided to convert"):
        await made(store, renderer, files={})
    with pytest.raises(Unsupported, match=r"unknown type: model\.bin"):
        await made(store, renderer, files={"model.bin": store.blobs.put(b"PK")[0]})


async def test_a_create_goes_on_where_a_daemon_was_that_was_told_to_end(
    store: Store, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_into, read, whole = GgufFile.read_into, 0, 0

    def ended_at_the_end(file: GgufFile, out: Any, info: Any, start: int) -> None:
        nonlocal read
        read += len(out)
        if info.name == "blk.1.ffn_down.weight" and not whole:
            store.blobs.is_ending = True
            raise ConnectionAbortedError("as a cancelled import leaves its writers")
        read_into(file, out, info, start)

    monkeypatch.setattr(import_gguf, "FtwWriter", functools.partial(FtwWriter, chunk_bytes=4096))
    monkeypatch.setattr(GgufFile, "read_into", ended_at_the_end)
    uploads = upload(store)
    with pytest.raises(ConnectionAbortedError):
        await made(store, renderer, files=uploads)
    whole, read = read, 0
    later = Store(store.models_dir)
    later.sweep()
    assert store.blobs.has(uploads["model.gguf"]) and later.list() == []
    assert any(name.startswith("staged-") for name in files_in(later))
    await made(later, renderer, files=uploads)
    assert read < whole / 2
    assert not any(name.startswith("staged-") for name in files_in(later))


async def test_a_create_goes_on_where_a_killed_daemon_was(
    store: Store, renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the store taken while the file is converted is what a kill leaves."""
    copy, read = tmp_path / "copy", 0
    read_into = GgufFile.read_into

    def copied_at_the_end(file: GgufFile, out: Any, info: Any, start: int) -> None:
        nonlocal read
        read += len(out)
        if info.name == "blk.1.ffn_down.weight" and not copy.exists():
            shutil.copytree(store.models_dir, copy, ignore=shutil.ignore_patterns("copy"))
        read_into(file, out, info, start)

    monkeypatch.setattr(import_gguf, "FtwWriter", functools.partial(FtwWriter, chunk_bytes=4096))
    monkeypatch.setattr(GgufFile, "read_into", copied_at_the_end)
    uploads = upload(store)
    await made(store, renderer, files=uploads)
    whole, read = read, 0
    killed = Store(copy)
    killed.sweep()
    assert any(name.startswith("staged-") for name in files_in(killed)) and killed.list() == []
    await made(killed, renderer, files=uploads)
    assert read < whole / 3
    assert files_in(killed) == files_in(store)
    assert killed.read(parse_name("m")).raw == store.read(parse_name("m")).raw
