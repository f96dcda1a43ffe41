"""The body of ``POST /api/create`` as a typed request: everything that can be refused before work starts."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftd import log
from ftd.errors import InvalidRequest, Unsupported
from ftd.ftw.recipes import QUANTIZED
from ftd.names import ModelName, parse_digest, parse_name

_log = logging.getLogger(__name__)

MAX_FILES = 10_000
_IGNORED = ("renderer", "parser", "requires", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """What to create. One of ``base`` (a model name) and ``files`` (relative path -> digest) is set.

    quantization: the format that floats are converted to; None keeps what the source has.
    """

    name: ModelName
    base: str = ""
    files: dict[str, str] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    licenses: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    quantization: str | None = None


def check_request(body: Mapping[str, Any]) -> CreateRequest:
    """Return the typed request; raise InvalidRequest, InvalidName, InvalidDigest or Unsupported."""
    name = parse_name(_text(body, "model") or _text(body, "name"))
    files = _object(body, "files")
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"more than {MAX_FILES} files: {len(files)}")
    for path, digest in files.items():
        if not _is_relative(path):
            raise InvalidRequest(f"file path must be relative: {path:.200}")
        parse_digest(digest)
    _refuse(body)
    base = _text(body, "from")
    if not base and body.get("files") is None:
        raise InvalidRequest("neither 'from' or 'files' was specified", "give a model or a file in FROM")
    if base:
        parse_name(base)
    for key in _IGNORED:
        if body.get(key):
            _log.warning(log.fields("create field has no effect", field=key))
    return CreateRequest(
        name=name,
        base=base,
        files={} if base else dict(files),
        template=_text(body, "template"),
        system=_text(body, "system"),
        licenses=_licenses(body.get("license")),
        parameters=dict(_object(body, "parameters")),
        messages=_messages(body.get("messages")),
        quantization=_quantization(body),
    )


def _refuse(body: Mapping[str, Any]) -> None:
    for key, what in (
        ("adapters", "adapters"),
        ("draft_files", "draft models"),
        ("remote_host", "remote models"),
    ):
        if body.get(key):
            raise Unsupported(f"{what} are not supported: {key}")


def _quantization(body: Mapping[str, Any]) -> str | None:
    name = _text(body, "quantize") or _text(body, "quantization")
    if name and name.lower() not in QUANTIZED:
        raise Unsupported(f"unsupported quantization type {name}", f"use one of {' '.join(QUANTIZED)}")
    if name and body.get("from"):
        raise Unsupported(f"a stored model keeps its quantization: {name}", "create from safetensors files")
    return name.lower() or None


def _is_relative(path: str) -> bool:
    """Say whether ``path`` is a plain relative path: no empty, ``.`` or ``..`` part."""
    return bool(path) and all(part not in ("", ".", "..") for part in path.split("/")) and "\0" not in path


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{key} must be a string: {value!r:.100}")
    return value


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{key} must be an object: {value!r:.100}")
    return value


def _licenses(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"license must be a string or a list of strings: {value!r:.100}")
    return [text for text in texts if text]


def _messages(value: Any) -> list[dict[str, str]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"messages must be a list: {value!r:.100}")
    messages = []
    for message in value:
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str | None):
            raise InvalidRequest(f"message needs a role and a text: {message!r:.100}")
        if role.lower() not in ("system", "user", "assistant", "tool"):
            raise InvalidRequest(f"message role must be system, user, assistant or tool: {role:.40}")
        messages.append({"role": role.lower(), "content": content or ""})
    return messages
