"""Credentials of the registry protocol: who we are, shown only to the host that asked.

Three answers to a 401: ``Basic`` with a user and password from ``auth.json`` (the layout of docker's config
file), and ``Bearer`` with a token from the realm, which must be on the registry's own host. The request for
a token is signed with an ed25519 key in Ollama's form: ``<base64 public key blob>:<base64 signature>`` over
``GET,<token URL>,<base64 of the hex sha256 of an empty body>``.
"""

import base64
import hashlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from yarl import URL

from ftd import environment
from ftd.errors import CorruptData, TransferError, Unauthorized

KEY_FILE = "id_ed25519"
CREDENTIALS_FILE = "auth.json"
_PARAMETER = re.compile(r'\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')
_EMPTY_BODY = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()


@dataclass(frozen=True, slots=True)
class Challenge:
    """A parsed ``WWW-Authenticate``: the scheme in lower case and its parameters."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge:
    """Parse one challenge; raise Unauthorized if the registry asks for something unknown."""
    scheme, _, rest = header.strip().partition(" ")
    values: dict[str, str] = {}
    position = 0
    while match := _PARAMETER.match(rest, position):
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        values.setdefault(match[1].lower(), value)
        position = match.end()
    if scheme.lower() not in ("bearer", "basic"):
        raise Unauthorized(f"registry asks for an unknown kind of credentials: {scheme[:40]!r}")
    return Challenge(
        scheme.lower(), values.get("realm", ""), values.get("service", ""), values.get("scope", "")
    )


def token_url(challenge: Challenge, registry: URL, now_s: float, nonce: str) -> URL:
    """Return the URL that hands out a token; raise TransferError if it is not on the registry's own host."""
    realm = URL(challenge.realm)
    if realm.scheme not in ("http", "https") or not realm.host:
        raise TransferError(f"registry sent an invalid realm: {challenge.realm[:200]!r}")
    if (realm.host, realm.port) != (registry.host, registry.port):
        raise TransferError(
            f'realm host "{realm.host}:{realm.port}" does not match '
            f'original host "{registry.host}:{registry.port}"'
        )
    if realm.scheme == "http" and registry.scheme == "https":
        raise TransferError(f"realm is not encrypted but the registry is: {challenge.realm[:200]!r}")
    pairs = [(key, value) for key, value in realm.query.items()]
    pairs += [("service", challenge.service)] if challenge.service else []
    pairs += [("scope", scope) for scope in challenge.scope.split()]
    pairs += [("ts", str(int(now_s))), ("nonce", nonce)]
    query = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in sorted(pairs))
    base = str(realm.with_query(None).with_fragment(None))
    return URL(f"{base}?{query}", encoded=True)


def make_nonce() -> str:
    """Return 16 random bytes as raw URL base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


class SigningKey:
    """The ed25519 key of this installation, made on first use (private file 0600, public file 0644)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY_FILE
        self._key: Ed25519PrivateKey | None = None

    def sign_token_request(self, url: str) -> str:
        """Return the Authorization header value for ``GET url``."""
        text = f"GET,{url},{_EMPTY_BODY}"
        signature = self._load().sign(text.encode())
        return f"{self.public_blob()}:{base64.b64encode(signature).decode()}"

    def public_blob(self) -> str:
        """Return the base64 SSH public key blob, the second word of the ``.pub`` line."""
        return self._public_line().split(" ")[1]

    def _public_line(self) -> str:
        public = self._load().public_key()
        line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        return line.decode()

    def _load(self) -> Ed25519PrivateKey:
        if self._key is None:
            try:
                data = self._path.read_bytes()
            except FileNotFoundError:
                data = self._create()
            try:
                key = serialization.load_ssh_private_key(data, password=None)
            except ValueError as exc:
                raise CorruptData(f"not an OpenSSH private key: {self._path}") from exc
            if not isinstance(key, Ed25519PrivateKey):
                raise CorruptData(f"not an ed25519 key: {self._path}")
            self._key = key
        return self._key

    def _create(self) -> bytes:
        key = Ed25519PrivateKey.generate()
        data = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{KEY_FILE}-{secrets.token_hex(8)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link fails if another process was first; then its key is the key.
            os.link(temporary, self._path)
        except FileExistsError:
            return self._path.read_bytes()
        finally:
            temporary.unlink()
        self._key = key
        self._path.with_name(f"{KEY_FILE}.pub").write_text(f"{self._public_line()}\n", "utf-8")
        return data


def load_credentials(folder: Path) -> Mapping[str, str]:
    """Return ``host[:port]`` → base64 ``user:password`` from ``auth.json``; empty without the file."""
    path = folder / CREDENTIALS_FILE
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        auths = document.get("auths", {})
        found = {str(host).lower(): str(entry["auth"]) for host, entry in auths.items()}
        for value in found.values():
            base64.b64decode(value, validate=True)
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as exc:
        raise CorruptData(
            f"cannot read {path}: {exc}", 'write it as {"auths":{"host:port":{"auth":"…"}}}'
        ) from exc
    return found


def login_hint() -> str:
    """Say where the user and password of a registry are to be written, and how."""
    example = '{"auths":{"host:port":{"auth":"base64 of user:password"}}}'
    return f"write {example} into {environment.state_dir() / CREDENTIALS_FILE}, as docker login does"


class Authorizer:
    """The credentials of one operation against one registry; holds the header its requests carry."""

    def __init__(self, key: SigningKey, credentials: Mapping[str, str]) -> None:
        self._key = key
        self._credentials = credentials
        self.header: str | None = None

    def basic(self, registry: URL) -> str | None:
        """Return the Basic header configured for the registry, if any."""
        for host in (f"{registry.host}:{registry.port}", str(registry.host)):
            if host.lower() in self._credentials:
                return f"Basic {self._credentials[host.lower()]}"
        return None

    def token_requests(self, challenge: Challenge, registry: URL) -> list[tuple[URL, str | None]]:
        """Return the requests for a token to try in turn, as URL and Authorization header.

        With configured credentials there is one. Without, the first is signed; the second is anonymous, for
        token services that refuse a header they do not know.
        """
        url = token_url(challenge, registry, time.time(), make_nonce())
        if basic := self.basic(registry):
            return [(url, basic)]
        return [(url, self._key.sign_token_request(str(url))), (url, None)]


def parse_token(body: bytes) -> str:
    """Return the token of a token answer; raise TransferError if there is none."""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise TransferError(f"registry sent an invalid token answer: {exc}") from exc
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise TransferError("registry sent a token answer without a token")
    return token
