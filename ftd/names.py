"""Model names and digests: parsed once at the edge, trusted inside.

    [scheme://][HOST/][NAMESPACE/]MODEL[:TAG]      host/namespace/model/tag on disk

Defaults: ``https``, ``registry.ollama.ai``, ``library``, ``latest``. Case is kept and ignored in comparisons.
"""

import re

import msgspec
from msgspec.structs import replace

from ftd.errors import InvalidDigest, InvalidName

DEFAULT_SCHEME = "https"
DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
# What a part looks like, and how that is said
_PARTS = {
    "host": (
        re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", re.ASCII),
        "letters, digits, _ . : - (350 at most)",
    ),
    "namespace": (
        re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", re.ASCII),
        "letters, digits, _ - (80 at most)",
    ),
    "model": (
        re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII),
        "letters, digits, _ . - (80 at most)",
    ),
    "tag": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII), "letters, digits, _ . - (80 at most)"),
}


def parse_digest(text: str) -> str:
    """Return ``text`` if it is ``sha256:`` and 64 lower-case hex digits; raise InvalidDigest otherwise."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise InvalidDigest(
            f"invalid digest format: {text!r:.100}", "use sha256: and 64 lower-case hex digits"
        )
    return text


class ModelName(msgspec.Struct, frozen=True):
    """The four parts of a model name, each valid, plus the scheme its registry is reached by."""

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = DEFAULT_SCHEME

    def __post_init__(self) -> None:
        for part, (pattern, allowed) in _PARTS.items():
            value = getattr(self, part)
            if not pattern.fullmatch(value):
                raise InvalidName(
                    "invalid model name",
                    f"{part} {value!r:.90} is not allowed: use {allowed}, the first a letter, a digit or _",
                )
        if self.scheme not in ("http", "https"):
            raise InvalidName("invalid model name", f"scheme {self.scheme!r:.20} is not http or https")

    @property
    def repository(self) -> str:
        """``namespace/model``, the name of the repository on its registry."""
        return f"{self.namespace}/{self.model}"

    @property
    def full(self) -> str:
        """``host/namespace/model:tag``."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def display(self) -> str:
        """The shortest text that parses to this name; the tag is always shown."""
        short = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{short}"

    @property
    def key(self) -> str:
        """The full name in lower case: equal for names that differ in case only."""
        return self.full.lower()

    def with_tag(self, tag: str) -> "ModelName":
        """Return the same model under another tag."""
        return replace(self, tag=tag)


def parse_name(text: str) -> ModelName:
    """Parse a model name as a user types it; raise InvalidName with the reason as hint."""
    rest = text.strip()
    scheme = DEFAULT_SCHEME
    if "://" in rest:
        scheme, rest = rest.split("://", 1)
    tag = DEFAULT_TAG
    if rest.rfind(":") > rest.rfind("/"):
        rest, tag = rest.rsplit(":", 1)
    parts = rest.split("/")
    if len(parts) > 3:
        raise InvalidName("invalid model name", "use [host/][namespace/]model[:tag]")
    host = parts[0] if len(parts) == 3 else DEFAULT_HOST
    namespace = parts[-2] if len(parts) >= 2 else DEFAULT_NAMESPACE
    return ModelName(host, namespace, parts[-1], tag, scheme)
