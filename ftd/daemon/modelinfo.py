"""What a stored model is, read from its manifest and small blobs: the daemon's one view of a model.

    manifest.config   application/vnd.ftd.config.v1+json         FTW config: architecture, tensor table
    layers            application/vnd.ftd.weights.dense.v1       weights, read by the engine only
                      application/vnd.ftd.tokenizer.v1+json      tokenizer.json
                      application/vnd.ollama.image.template      Go template, from a TEMPLATE line
                      application/vnd.ftd.template.jinja         Jinja template that came with the weights;
                                                                 of the two the more able one is used
                      application/vnd.ollama.image.system        text
                      application/vnd.ollama.image.params        JSON object
                      application/vnd.ollama.image.messages      JSON list of {"role", "content"}
                      application/vnd.ollama.image.license       text, any number of them

Everything here blocks and reads kilobytes to megabytes (the tokenizer); call it in a thread. Blobs are named
by their digest, so a result stays true for as long as the manifest digest stays the same.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ftd import units
from ftd.chat.templates import template_capabilities
from ftd.chat.tokenizer import Tokenizer
from ftd.errors import BlobNotFound, DamagedBlob, Unsupported
from ftd.ftw.format import ENCODER_TYPES, FtwConfig, parse_config
from ftd.names import ModelName
from ftd.registry.manifest import Descriptor, Manifest
from ftd.registry.store import Store

MEDIA_CONFIG = "application/vnd.ftd.config.v1+json"
MEDIA_TOKENIZER = "application/vnd.ftd.tokenizer.v1+json"
MEDIA_JINJA = "application/vnd.ftd.template.jinja"
MEDIA_GO_TEMPLATE = "application/vnd.ollama.image.template"
MEDIA_SYSTEM = "application/vnd.ollama.image.system"
MEDIA_PARAMS = "application/vnd.ollama.image.params"
MEDIA_MESSAGES = "application/vnd.ollama.image.messages"
MEDIA_LICENSE = "application/vnd.ollama.image.license"
MEDIA_GGUF = "application/vnd.ollama.image.model"

MAX_CONFIG_BYTES = 64 << 20
MAX_TOKENIZER_BYTES = 128 << 20
MAX_TEXT_BYTES = 4 << 20

_T = TypeVar("_T")


class TemplateSource(msgspec.Struct, frozen=True):
    """A chat template and the language that it is written in; ``none``: the prompt is sent as it is."""

    kind: Literal["jinja", "go", "none"] = "none"
    text: str = ""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stored model. ``digest`` is the hex of the manifest; ``size_bytes`` counts every blob once.

    blob_paths: digest -> file, the blobs named by the FTW config (what ``Load`` wants).
    """

    name: ModelName
    digest: str
    size_bytes: int
    manifest: Manifest
    config: FtwConfig
    config_path: Path
    blob_paths: dict[str, Path]
    template: TemplateSource = TemplateSource()
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    licenses: list[str] = []
    capabilities: tuple[str, ...] = ()
    details: dict[str, Any] = {}

    @property
    def context_length(self) -> int:
        """Tokens the model was trained for; 0 if it does not say."""
        return _number(self.config, "max_position_embeddings")


def read_model(store: Store, name: ModelName) -> ModelInfo:
    """Read a stored model; raise ModelNotFound, DamagedBlob, BlobNotFound or Unsupported."""
    found = store.resolve(name)
    return info_of(store, found, store.read(found))


def info_of(store: Store, name: ModelName, manifest: Manifest) -> ModelInfo:
    """Return what ``manifest`` says about the model called ``name``."""
    if manifest.config.media_type != MEDIA_CONFIG:
        raise Unsupported(f"model is not stored as FTW: {name.display}", "create it again from its GGUF file")
    config = parse_config(_read(store, manifest.config.digest, MAX_CONFIG_BYTES))
    by_type: dict[str, list[bytes]] = {}
    for layer in manifest.layers:
        if layer.media_type in _SMALL:
            by_type.setdefault(layer.media_type, []).append(_read(store, layer.digest, MAX_TEXT_BYTES))
    template = _template(by_type)
    return ModelInfo(
        name=name,
        digest=manifest.digest,
        size_bytes=manifest.config.size + sum(layer.size for layer in manifest.layers),
        manifest=manifest,
        config=config,
        config_path=store.blobs.path(manifest.config.digest),
        blob_paths={blob.digest: store.blobs.path(blob.digest) for blob in config.blobs},
        template=template,
        system=_text(by_type, MEDIA_SYSTEM),
        parameters=_json(by_type, MEDIA_PARAMS, dict[str, Any]) or {},
        messages=_json(by_type, MEDIA_MESSAGES, list[dict[str, Any]]) or [],
        licenses=[_decode(data, MEDIA_LICENSE) for data in by_type.get(MEDIA_LICENSE, [])],
        capabilities=capabilities(config, template),
        details=details(config, next((x.origin for x in manifest.layers if x.origin), "")),
    )


def read_tokenizer(store: Store, info: ModelInfo) -> Tokenizer:
    """Return the vocabulary of a model; raise BlobNotFound or DamagedBlob."""
    layers = [layer for layer in info.manifest.layers if layer.media_type == MEDIA_TOKENIZER]
    data = _read(store, layers[-1].digest, MAX_TOKENIZER_BYTES) if layers else b""
    return Tokenizer.from_json(data, info.config.tokens)


def read_json(store: Store, layer: Descriptor) -> dict[str, Any]:
    """Return the JSON object in a layer; raise BlobNotFound or DamagedBlob."""
    data = _read(store, layer.digest, MAX_TEXT_BYTES)
    return _json({layer.media_type: [data]}, layer.media_type, dict[str, Any]) or {}


def capabilities(config: FtwConfig, template: TemplateSource) -> tuple[str, ...]:
    """Return what the model can do: completion or embedding, then what its template adds."""
    embeds = config.architecture in ENCODER_TYPES or pooling_type(config) is not None
    first = "embedding" if embeds else "completion"
    return (first, *template_capabilities(template.kind, template.text))


def pooling_type(config: FtwConfig) -> Any:
    """Return GGUF's number of how token states become one vector; None if the model does not say."""
    return config.metadata.get(f"{family(config)}.pooling_type")


def family(config: FtwConfig) -> str:
    """Return the architecture as GGUF spells it (``gemma3``), or the FTW one if the source was no GGUF."""
    return str(config.metadata.get("general.architecture") or config.architecture)


def details(config: FtwConfig, parent: str = "") -> dict[str, Any]:
    """Return the ``details`` object of ``/api/tags``, ``/api/ps`` and ``/api/show``."""
    found: dict[str, Any] = {
        "parent_model": parent,
        "format": "ftw",
        "family": family(config),
        "families": [family(config)],
        "parameter_size": units.format_count(config.parameter_count),
        "quantization_level": config.quantization,
    }
    for key, source in (
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
    ):
        if value := _number(config, source):
            found[key] = value
    return found


_SMALL = frozenset(
    (
        MEDIA_JINJA,
        MEDIA_GO_TEMPLATE,
        MEDIA_SYSTEM,
        MEDIA_PARAMS,
        MEDIA_MESSAGES,
        MEDIA_LICENSE,
    )
)


def _number(config: FtwConfig, key: str) -> int:
    value = config.hyperparameters.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _read(store: Store, digest: str, max_bytes: int) -> bytes:
    if not store.blobs.has(digest):
        raise BlobNotFound(f"blob not found: {digest}", "pull the model again")
    return store.blobs.read(digest, max_bytes)


def _template(by_type: dict[str, list[bytes]]) -> TemplateSource:
    """Choose the Go template unless the Jinja template beside it can do more."""
    go, jinja = _text(by_type, MEDIA_GO_TEMPLATE), _text(by_type, MEDIA_JINJA)
    if go and jinja:
        known = {"tools", "thinking"}
        more = known & set(template_capabilities("jinja", jinja))
        less = known & set(template_capabilities("go", go))
        return TemplateSource("jinja", jinja) if len(more) > len(less) else TemplateSource("go", go)
    if go:
        return TemplateSource("go", go)
    return TemplateSource("jinja", jinja) if jinja else TemplateSource()


def _last(by_type: dict[str, list[bytes]], media_type: str) -> bytes:
    return by_type.get(media_type, [b""])[-1]


def _text(by_type: dict[str, list[bytes]], media_type: str) -> str:
    return _decode(_last(by_type, media_type), media_type)


def _decode(data: bytes, media_type: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise DamagedBlob(f"layer is not UTF-8 text: {media_type}: {exc}") from exc


def _json(by_type: dict[str, list[bytes]], media_type: str, kind: type[_T]) -> _T | None:
    data = _last(by_type, media_type)
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise DamagedBlob(f"layer is not what its media type says: {media_type}: {exc}") from exc
