"""Layers written by hand into a store and read back."""

from pathlib import Path
from typing import Any

import gguf_bytes
import pytest

from ftd.daemon import modelinfo as m
from ftd.errors import BlobNotFound, DamagedBlob, ModelNotFound
from ftd.ftw.import_gguf import import_gguf
from ftd.names import parse_name
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.store import Store

NAME = parse_name("m")
ABLE = "{{ tools }}<think></think>"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in a folder of its own."""
    return Store(tmp_path / "models")


def write(store: Store, tmp_path: Path, *texts: tuple[str, bytes], **metadata: Any) -> None:
    """Store a model with the given text layers."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes.gguf(*gguf_bytes.model(**metadata)))
    imported = import_gguf([path], store.blobs)
    config = Descriptor(m.MEDIA_CONFIG, imported.config_digest, imported.config_size)
    layers = [Descriptor(blob.media_type, blob.digest, blob.size) for blob in imported.blobs]
    layers += [Descriptor(media_type, *store.blobs.put(data)) for media_type, data in texts]
    store.write(NAME, build_manifest(config, layers))


def test_layers_become_fields(store: Store, tmp_path: Path) -> None:
    write(
        store,
        tmp_path,
        (m.MEDIA_SYSTEM, "Grüße".encode()),
        (m.MEDIA_PARAMS, b'{"stop":["\\u003c"],"top_k":3}\n'),
        (m.MEDIA_MESSAGES, b'[{"role":"user","content":"x"}]\n'),
        (m.MEDIA_LICENSE, b"MIT"),
        (m.MEDIA_LICENSE, b"Apache-2.0"),
        ("application/vnd.example.unknown", b"\xff"),
    )
    info = m.read_model(store, NAME)
    assert info.system == "Grüße"
    assert info.parameters == {"stop": ["<"], "top_k": 3}
    assert info.messages == [{"role": "user", "content": "x"}]
    assert info.licenses == ["MIT", "Apache-2.0"]
    assert m.read_tokenizer(store, info).vocab_size > 0
    assert info.digest == store.read(NAME).digest
    assert info.size_bytes == store.read(NAME).size
    assert info.context_length == 128
    assert info.capabilities == ("completion",)


def test_details_are_those_of_tags(store: Store, tmp_path: Path) -> None:
    write(store, tmp_path)
    details = m.read_model(store, NAME).details
    assert details["parent_model"] == ""
    assert (details["format"], details["family"], details["families"]) == ("ftw", "llama", ["llama"])
    assert details["quantization_level"] == "Q4_0"
    assert (details["context_length"], details["embedding_length"]) == (128, 256)
    assert details["parameter_size"].endswith("M")


@pytest.mark.parametrize(
    ("go", "jinja", "kind"),
    [
        ("{{ .Prompt }}", "", "go"),
        ("", "{{ messages }}", "jinja"),
        ("", "", "none"),
        ("{{ .Prompt }}", "{{ messages }}", "go"),
        ("{{ .Prompt }}", ABLE, "jinja"),
        ("{{ .Tools }}{{ range .Messages }}<t>{{ .Thinking }}</t>{{ end }}", ABLE, "go"),
    ],
)
def test_the_more_able_template_is_used(go: str, jinja: str, kind: str, store: Store, tmp_path: Path) -> None:
    layers = [(m.MEDIA_GO_TEMPLATE, go.encode()), (m.MEDIA_JINJA, jinja.encode())]
    write(store, tmp_path, *(layer for layer in layers if layer[1]))
    assert m.read_model(store, NAME).template.kind == kind


def test_an_able_template_in_the_file_gives_the_capabilities(store: Store, tmp_path: Path) -> None:
    write(store, tmp_path, (m.MEDIA_JINJA, ABLE.encode()))
    assert m.read_model(store, NAME).capabilities == ("completion", "tools", "thinking")


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        (m.MEDIA_SYSTEM, b"\xff"),
        (m.MEDIA_PARAMS, b"[1]"),
        (m.MEDIA_PARAMS, b"{"),
        (m.MEDIA_MESSAGES, b'{"a":1}'),
        (m.MEDIA_MESSAGES, b"[" * 100_000),
    ],
)
def test_damaged_layers_are_refused(media_type: str, data: bytes, store: Store, tmp_path: Path) -> None:
    write(store, tmp_path, (media_type, data))
    with pytest.raises(DamagedBlob):
        m.read_model(store, NAME)


def test_missing_things_are_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="m:latest"):
        m.read_model(store, NAME)
    write(store, tmp_path, (m.MEDIA_SYSTEM, b"x"))
    layer = store.read(NAME).layer(m.MEDIA_SYSTEM)
    assert layer is not None
    store.blobs.remove(layer.digest)
    with pytest.raises(BlobNotFound, match=layer.digest):
        m.read_model(store, NAME)
