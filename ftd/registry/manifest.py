"""Manifests: the JSON document that names a config blob and the layer blobs of a model.

    {"schemaVersion":2,"mediaType":M,"config":{"mediaType","digest","size"},
     "layers":[{"mediaType","digest","size","from"?,"name"?}, …]}

The bytes are the identity: a manifest is kept, served and hashed exactly as it came, never written again from
its parts. Every digest is checked here, at parse time, so no later path can be built from a bad one.
"""

import hashlib
import json
from collections.abc import Sequence

import msgspec

from ftd.errors import CorruptData, InvalidDigest
from ftd.names import parse_digest

MANIFEST_V2 = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_OCI = "application/vnd.oci.image.manifest.v1+json"
MEDIA_TYPES = (MANIFEST_V2, MANIFEST_OCI)
MAX_MANIFEST_BYTES = 4 * 2**20
_MAX_SIZE_BYTES = 2**63 - 1


class Descriptor(msgspec.Struct, frozen=True):
    """What a manifest says of one blob; ``origin`` is the model it was first part of (``from``)."""

    media_type: str
    digest: str
    size: int
    origin: str = ""
    name: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """A parsed manifest together with its exact bytes."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    raw: bytes
    media_type: str = MANIFEST_V2

    @property
    def digest(self) -> str:
        """Hex sha256 of the bytes, without the ``sha256:`` prefix, as the API shows it."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all layers and the config together, as the manifest states them."""
        return self.config.size + sum(layer.size for layer in self.layers)

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Layers in order, then the config; each digest once."""
        return tuple({entry.digest: entry for entry in (*self.layers, self.config)}.values())

    def layer(self, media_type: str) -> Descriptor | None:
        """Return the last layer of this media type, the one that counts, or None."""
        return next((entry for entry in reversed(self.layers) if entry.media_type == media_type), None)


class _Entry(msgspec.Struct):
    digest: str
    size: int
    media_type: str = msgspec.field(name="mediaType", default="")
    origin: str | None = msgspec.field(name="from", default=None)
    name: str | None = None


class _Document(msgspec.Struct):
    config: _Entry
    layers: list[_Entry] | None = None
    schema_version: int = msgspec.field(name="schemaVersion", default=2)
    media_type: str | None = msgspec.field(name="mediaType", default=None)


def parse_manifest(raw: bytes) -> Manifest:
    """Parse manifest bytes; raise CorruptData with the reason. Unknown keys and layer types are kept."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise CorruptData(f"manifest is longer than {MAX_MANIFEST_BYTES} bytes: {len(raw)}")
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptData(f"invalid manifest: {exc}") from exc
    media_type = document.media_type or MANIFEST_OCI
    if media_type not in MEDIA_TYPES:
        raise CorruptData(f"unsupported manifest type: {media_type:.100}", "use a single-image manifest")
    if document.schema_version != 2:
        raise CorruptData(f"unsupported manifest schema version: {document.schema_version}")
    layers = tuple(map(_descriptor, document.layers or ()))
    manifest = Manifest(_descriptor(document.config), layers, raw, media_type)
    _check_sizes(manifest)
    return manifest


def _descriptor(entry: _Entry) -> Descriptor:
    try:
        digest = parse_digest(entry.digest)
    except InvalidDigest as exc:
        raise CorruptData(f"invalid manifest: {exc.message}", exc.hint) from exc
    if not 0 <= entry.size <= _MAX_SIZE_BYTES:
        raise CorruptData(f"invalid manifest: size of {digest} is out of range: {entry.size}")
    return Descriptor(entry.media_type, digest, entry.size, entry.origin or "", entry.name or "")


def _check_sizes(manifest: Manifest) -> None:
    size_by_digest: dict[str, int] = {}
    for entry in (*manifest.layers, manifest.config):
        if size_by_digest.setdefault(entry.digest, entry.size) != entry.size:
            raise CorruptData(f"invalid manifest: two sizes for one blob: {entry.digest}")


def build_manifest(config: Descriptor, layers: Sequence[Descriptor]) -> Manifest:
    """Write a manifest in the key order, spacing and escaping of Ollama, with its newline at the end."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_V2,
        "config": _entry(config),
        "layers": [_entry(layer) for layer in layers],
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return parse_manifest(text.encode() + b"\n")


def _entry(descriptor: Descriptor) -> dict[str, str | int]:
    entry: dict[str, str | int] = {
        "mediaType": descriptor.media_type,
        "digest": descriptor.digest,
        "size": descriptor.size,
    }
    if descriptor.origin:
        entry["from"] = descriptor.origin
    if descriptor.name:
        entry["name"] = descriptor.name
    return entry
