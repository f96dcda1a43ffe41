"""Manifests: golden bytes typed by hand, and everything that must be refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.errors import CorruptData
from ftd.registry.manifest import (
    MANIFEST_OCI,
    MANIFEST_V2,
    Descriptor,
    Manifest,
    build_manifest,
    parse_manifest,
)

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
GOLDEN = (
    b'{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
    b'"config":{"mediaType":"application/vnd.ftd.config.v1+json","digest":"' + A.encode() + b'","size":3},'
    b'"layers":[{"mediaType":"t","digest":"'
    + B.encode()
    + b'","size":5,"from":"base:latest","name":"a\\u003cb"}]}\n'
)
# sha256sum of the golden bytes, computed outside this program.
GOLDEN_DIGEST = "15a9b39f4f147562616b4ac970d8059c528b4555a68373dfd72f02b78417fc6f"


def built() -> Manifest:
    config = Descriptor("application/vnd.ftd.config.v1+json", A, 3)
    return build_manifest(config, [Descriptor("t", B, 5, "base:latest", "a<b")])


def document(**changes: Any) -> dict[str, Any]:
    base = json.loads(GOLDEN)
    return {**base, **changes}


def test_a_built_manifest_has_the_golden_bytes() -> None:
    assert built().raw == GOLDEN


def test_the_digest_is_that_of_the_bytes() -> None:
    assert built().digest == GOLDEN_DIGEST


def test_parsing_gives_back_what_was_built_and_keeps_the_bytes() -> None:
    parsed = parse_manifest(GOLDEN)
    assert parsed == built()
    assert parsed.layers[0] == Descriptor("t", B, 5, "base:latest", "a<b")
    assert parsed.size == 8


def test_unknown_keys_and_types_are_kept_in_the_bytes_and_ignored() -> None:
    raw = json.dumps(document(annotations={"x": [1]}, subject=None)).encode()
    assert parse_manifest(raw).raw == raw


def test_a_manifest_without_a_type_is_an_oci_manifest() -> None:
    raw = json.dumps({key: value for key, value in document().items() if key != "mediaType"}).encode()
    assert parse_manifest(raw).media_type == MANIFEST_OCI


def test_blobs_are_layers_then_config_each_once() -> None:
    config, layer = Descriptor("c", A, 1), Descriptor("l", B, 2)
    assert [entry.digest for entry in build_manifest(config, [layer, layer]).blobs] == [B, A]


def test_the_last_layer_of_a_type_counts() -> None:
    manifest = build_manifest(Descriptor("c", A, 1), [Descriptor("t", A, 1), Descriptor("t", B, 2)])
    assert manifest.layer("t") == Descriptor("t", B, 2)
    assert manifest.layer("u") is None
    assert manifest.media_type == MANIFEST_V2


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "x",
        A[:-1],
        A + "0",
        A.upper(),
        A.replace(":", "-"),
        "sha512:" + "a" * 64,
        "sha256:../../../x",
        A + "\n",
        "/etc/passwd",
        "sha256:" + "../" * 21 + "a",
    ],
)
@pytest.mark.parametrize("where", ["config", "layers"])
def test_a_bad_digest_is_refused_wherever_it_stands(digest: str, where: str) -> None:
    entry = {"mediaType": "t", "digest": digest, "size": 1}
    raw = json.dumps(document(**{where: entry if where == "config" else [entry]})).encode()
    with pytest.raises(CorruptData, match="invalid digest format"):
        parse_manifest(raw)


@pytest.mark.parametrize("size", [-1, 2**63, 1.5, "1", None, True, 10**400])
def test_a_size_that_is_no_length_is_refused(size: object) -> None:
    raw = json.dumps(document(config={"mediaType": "t", "digest": A, "size": size})).encode()
    with pytest.raises(CorruptData):
        parse_manifest(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"config":3}',
        b"[" * 100_000,
        b"<html>",
        b" " * (4 * 2**20 + 1),
    ],
)
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        parse_manifest(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"mediaType": "application/vnd.oci.image.index.v1+json"},
        {"mediaType": "application/vnd.docker.distribution.manifest.list.v2+json"},
        {"schemaVersion": 1},
        {"layers": {}},
        {"layers": [{"mediaType": "t", "digest": A, "size": 4}]},
    ],
)
def test_other_documents_and_contradictions_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        parse_manifest(json.dumps(document(**changes)).encode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just(A),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["digest", "size", "mediaType", "from", "name", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["config", "layers", "schemaVersion", "mediaType"]), json_values))
def test_no_document_does_anything_but_parse_or_be_refused(value: dict[str, Any]) -> None:
    try:
        manifest = parse_manifest(json.dumps(value).encode())
    except CorruptData:
        return
    assert all(len(entry.digest) == 71 and entry.size >= 0 for entry in manifest.blobs)
