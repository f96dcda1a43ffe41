"""The store: which models there are, and which blobs they need.

    <models_dir>/manifests/<host>/<namespace>/<model>/<tag>   manifest bytes, exactly as they came
    <models_dir>/blobs/…                                      see ftd.registry.blobs
    <models_dir>/.lock                                        held while manifests change or blobs are pruned

The one rule: a manifest is visible only while all its blobs are there. Writing one checks that under the
lock that deleting takes, and blobs an operation is about to reference are held, so that a delete at the same
moment spares them. All calls block; the daemon runs them in threads.
"""

import collections
import contextlib
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ftd.errors import CorruptData, InvalidName, InvalidRequest, ModelNotFound
from ftd.names import ModelName
from ftd.registry.blobs import PARTIAL, UPLOAD, WRITING, BlobStore, lock_or_close, sync_folder
from ftd.registry.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from ftd.registry.staging import STAGED

STALE_UPLOAD_S = 24 * 3600
# What a pull, a create or a push was killed at, and may go on with; also whole blobs that no manifest names
# yet, because the manifest comes last
STALE_S = 14 * 24 * 3600
_ANY_DIGEST = re.compile(rb"sha256[:-]([0-9a-f]{64})")


class StoredModel(msgspec.Struct, frozen=True):
    """One row of the list: a name, its manifest, and when the manifest was written (local time zone)."""

    name: ModelName
    manifest: Manifest
    modified: datetime


class Store:
    """Models on disk. Any thread of any process may call it."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir
        self.blobs = BlobStore(models_dir / "blobs")
        self._manifests = models_dir / "manifests"
        self._manifests.mkdir(parents=True, exist_ok=True)
        self._held: collections.Counter[str] = collections.Counter()
        self._held_lock = threading.Lock()

    def resolve(self, name: ModelName) -> ModelName:
        """Return ``name`` with each part replaced by the spelling on disk that equals it but for case."""
        folder = self._manifests
        parts: list[str] = []
        for part in (name.host, name.namespace, name.model, name.tag):
            parts.append(_existing_spelling(folder, part))
            folder = folder / parts[-1]
        return replace(name, host=parts[0], namespace=parts[1], model=parts[2], tag=parts[3])

    def read(self, name: ModelName) -> Manifest:
        """Return the manifest of a model; raise ModelNotFound, or CorruptData if it does not parse."""
        path = self._path(self.resolve(name))
        try:
            raw = _read_bounded(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ModelNotFound(f"model '{name.display}' not found", f"ftd pull {name.display}") from None
        try:
            return parse_manifest(raw)
        except CorruptData as exc:
            raise CorruptData(f"manifest of {name.display}: {exc.message}", "pull the model again") from exc

    def modified(self, name: ModelName) -> datetime:
        """Return when the manifest of a resolved name was written (local time zone); raise ModelNotFound."""
        try:
            return _modified(self._path(name))
        except FileNotFoundError:
            raise ModelNotFound(f"model '{name.display}' not found") from None

    def has(self, name: ModelName) -> bool:
        """Say whether a manifest of this name is there, readable or not."""
        return self._path(self.resolve(name)).is_file()

    def write(self, name: ModelName, manifest: Manifest) -> None:
        """Publish a model under a name; raise BlobNotFound or InvalidRequest if a blob is not as stated."""
        with self._locked():
            for entry in manifest.blobs:
                size = self.blobs.size(entry.digest)
                if size != entry.size:
                    raise InvalidRequest(
                        f"blob {entry.digest} has {size} bytes, the manifest says {entry.size}"
                    )
            self._write_raw(name, manifest.raw)

    def copy(self, source: ModelName, destination: ModelName) -> None:
        """Give a model a second name: the manifest byte for byte; raise ModelNotFound."""
        with self._locked():
            self._write_raw(destination, self.read(source).raw)

    def delete(self, name: ModelName) -> Sequence[str]:
        """Remove a model and the blobs that only it used; return their digests. Raise ModelNotFound."""
        with self._locked():
            path = self._path(self.resolve(name))
            try:
                digests = _digests_in(_read_bounded(path))
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ModelNotFound(f"model '{name.display}' not found") from None
            sync_folder(path.parent)
            self._remove_empty_parents(path.parent)
            return self._prune(digests)

    def prune(self, digests: Iterable[str]) -> Sequence[str]:
        """Remove those of the given blobs that no manifest references and nobody holds; return them."""
        with self._locked():
            return self._prune(digests)

    def list(self) -> Sequence[StoredModel]:
        """Return all readable models, newest first; manifests that do not parse are left out."""
        models = []
        for name, path in self._walk():
            try:
                models.append(StoredModel(name, parse_manifest(_read_bounded(path)), _modified(path)))
            except (OSError, CorruptData):
                continue
        return sorted(models, key=lambda model: model.modified, reverse=True)

    def tags(self, name: ModelName) -> Sequence[str]:
        """Return all tags of the repository of a resolved name, sorted."""
        return sorted(found.tag for found, _ in self._walk(f"{name.host}/{name.namespace}/{name.model}/*"))

    @contextlib.contextmanager
    def hold(self, digests: Iterable[str]) -> Iterator[None]:
        """Keep blobs from being pruned by this process while an operation is about to reference them."""
        held = tuple(digests)
        with self._held_lock:
            self._held.update(held)
        try:
            yield
        finally:
            with self._held_lock:
                self._held.subtract(held)
                self._held = +self._held

    def references(self) -> set[str]:
        """Return every digest some manifest names; one that does not parse counts with all it mentions."""
        return {digest for _, path in self._walk() for digest in _digests_in(_read_bounded(path))}

    def sweep(self, *, now_s: float | None = None, prune: bool = True) -> Sequence[Path]:
        """Clean up after crashes, at the start of the daemon; return the files that were removed.

        Removed: files of dead writers; uploads a day old; staged blobs and partial downloads two weeks old,
        and partial ones whose blob came another way; and blobs two weeks old that no manifest names, unless
        ``prune`` is off or some manifest does not parse.
        """
        now_s = time.time() if now_s is None else now_s
        with self._locked():
            removed = [path for path in self._manifests.rglob(".writing-*") if _unlink(path)]
            removed += self._sweep_unfinished(now_s)
            if prune and all(map(_parses, (path for _, path in self._walk()))):
                removed += self._sweep_unreferenced(now_s)
            for folder in sorted(self._manifests.glob("*/*/*"), reverse=True):
                self._remove_empty_parents(folder)
        return removed

    def _sweep_unfinished(self, now_s: float) -> Iterator[Path]:
        for path in self.blobs.folder.iterdir():
            for is_kind, stale_s in (
                (path.name.startswith(WRITING), 0),
                (path.name.startswith(UPLOAD), STALE_UPLOAD_S),
                (PARTIAL in path.name, STALE_S),
                (path.name.startswith(STAGED), STALE_S),
                (self._is_superseded(path.name), 0),
            ):
                if is_kind and _remove_unlocked(path, now_s - stale_s):
                    yield path

    def _is_superseded(self, file_name: str) -> bool:
        blob_name, mark, _ = file_name.partition(PARTIAL)
        return bool(mark) and (self.blobs.folder / blob_name).exists()

    def _sweep_unreferenced(self, now_s: float) -> Iterator[Path]:
        with self._held_lock:
            spared = self.references() | set(self._held)
            for digest in set(self.blobs.digests()) - spared:
                path = self.blobs.path(digest)
                if path.stat().st_mtime <= now_s - STALE_S and self.blobs.remove(digest):
                    yield path

    def _path(self, name: ModelName) -> Path:
        return self._manifests / name.host / name.namespace / name.model / name.tag

    def _walk(self, pattern: str = "*/*/*/*") -> Iterator[tuple[ModelName, Path]]:
        for path in sorted(self._manifests.glob(pattern)):
            try:
                name = ModelName(*path.relative_to(self._manifests).parts)
            except InvalidName:
                continue
            if path.is_file():
                yield name, path

    def _write_raw(self, name: ModelName, raw: bytes) -> None:
        path = self._path(self.resolve(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        # A leading dot cannot start a tag, so a file left by a crash is never taken for a model.
        temporary = path.with_name(f".writing-{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = path.parent
        while folder != self.models_dir:
            sync_folder(folder)
            folder = folder.parent

    def _prune(self, digests: Iterable[str]) -> Sequence[str]:
        with self._held_lock:
            spared = self.references() | set(self._held)
            return [digest for digest in sorted(set(digests) - spared) if self.blobs.remove(digest)]

    def _remove_empty_parents(self, folder: Path) -> None:
        while folder != self._manifests:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.models_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime).astimezone()


def _existing_spelling(folder: Path, part: str) -> str:
    if (folder / part).exists():
        return part
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return part
    return next((name for name in sorted(names) if name.lower() == part.lower()), part)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_MANIFEST_BYTES + 1)


def _digests_in(raw: bytes) -> set[str]:
    try:
        return {entry.digest for entry in parse_manifest(raw).blobs}
    except CorruptData:
        return {f"sha256:{match.decode()}" for match in _ANY_DIGEST.findall(raw)}


def _parses(path: Path) -> bool:
    try:
        parse_manifest(_read_bounded(path))
    except CorruptData:
        return False
    return True


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _remove_unlocked(path: Path, before_s: float) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    if not lock_or_close(fd):
        return False
    try:
        return os.fstat(fd).st_mtime <= before_s and _unlink(path)
    finally:
        os.close(fd)
