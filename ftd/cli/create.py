"""``ftd create``: read a Modelfile, upload the files that it names, ask the daemon to make the model."""

import argparse
import hashlib
import os.path
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ftd.chat.modelfile import Modelfile, parse_modelfile
from ftd.cli import background, output
from ftd.cli.client import Client
from ftd.cli.progress import Progress
from ftd.errors import InvalidModelfile
from ftd.names import parse_name

_CHUNK_BYTES = 4 << 20
_STDIN = Path("-")
# the first group that has a file is the model; the side files go with all but GGUF
_MODEL_PATTERNS: tuple[tuple[str, ...], ...] = (
    ("freetoken-*.ftw",),
    ("model*.safetensors", "*/model*.safetensors"),
    ("consolidated*.safetensors",),
    ("*.gguf",),
)
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.ASCII)
_PROJECTOR = "mmproj"  # what reads pictures has a file of its own beside a model
_SIDE_PATTERNS = ("*.json", "*_Pooling/config.json", "chat_template.jinja", "tokenizer.model")


def run(options: argparse.Namespace) -> int:
    """Create ``options.model`` from the Modelfile."""
    parse_name(options.model)  # a name that is none is told before a model is sent
    path = Path(options.file or "Modelfile")
    source = "standard input" if path == _STDIN else str(path)
    modelfile = parse_modelfile(_read(path, bool(options.file)), source)
    for warning in modelfile.warnings:
        output.note(f"warning: {warning}")
    folder = Path.cwd() if path == _STDIN else path.resolve().parent
    with Progress() as progress:
        progress.status("gathering model components")
        body, uploads = request(options.model, modelfile, folder, options.quantize)
        client = background.connect()
        for field, name, file in uploads:
            body[field][name] = upload(client, file, progress)
        for item in client.stream("/api/create", body):
            status, total = str(item.get("status", "")), item.get("total")
            if total:
                progress.bar(status, int(item.get("completed", 0)), int(total))
            else:
                progress.status(status)
    return 0


def _read(path: Path, is_named: bool) -> bytes:
    if path == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as exc:
        hint = f"no such file: {path}" if is_named else "use -f FILE"
        raise InvalidModelfile("specified Modelfile wasn't found", hint) from exc


def request(
    model: str, modelfile: Modelfile, folder: Path, quantize: str | None = None
) -> tuple[dict[str, Any], list[tuple[str, str, Path]]]:
    """Return the body of ``/api/create`` without digests, and what to upload as (field, name there, path).

    Raises InvalidModelfile for a file that is not there, or two that would have the same name.
    """
    body: dict[str, Any] = {"model": model}
    uploads: list[tuple[str, str, Path]] = []
    bases: list[str] = []
    for text in modelfile.from_:
        files = _files(text, folder, "FROM")
        if files:
            uploads += [("files", name, file) for name, file in files.items()]
        else:
            bases.append(text)
    if bases:
        body["from"] = bases[-1]
    if len(bases) + bool(uploads) > 1:
        others = [*bases, *(name for _, name, _ in uploads)]
        raise InvalidModelfile(f"FROM names more than one model: {' and '.join(others[:2])}", "leave one")
    if modelfile.adapter is not None:
        adapters = _existing(modelfile.adapter, folder, "ADAPTER")
        uploads += [("adapters", name, file) for name, file in adapters.items()]
    for text in modelfile.drafts:
        drafts = _existing(text, folder, "DRAFT")
        uploads += [("draft_files", name, file) for name, file in drafts.items()]
    _refuse_twins(uploads)
    for field, _, _ in uploads:
        body[field] = {}
    fields = {
        "template": modelfile.template,
        "system": modelfile.system,
        "license": modelfile.licenses or None,
        "parameters": modelfile.parameters or None,
        "messages": modelfile.messages or None,
        "renderer": modelfile.renderer,
        "parser": modelfile.parser,
        "requires": modelfile.requires,
        "quantize": quantize,
    }
    return body | {name: value for name, value in fields.items() if value is not None}, uploads


def upload(client: Client, file: Path, progress: Progress) -> str:
    """Have the daemon hold the bytes of ``file``, sent only if it lacks them; return their digest."""
    size_bytes = file.stat().st_size
    digest = _digest(file, size_bytes, progress)
    if client.head(f"/api/blobs/{digest}") == 200:
        return digest
    progress.status(f"copying file {digest}")
    with file.open("rb") as stream:
        client.upload(f"/api/blobs/{digest}", stream, size_bytes)
    return digest


def _digest(file: Path, size_bytes: int, progress: Progress) -> str:
    sha256 = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            sha256.update(chunk)
            progress.bar(f"hashing {file.name}", min(stream.tell(), size_bytes), size_bytes)
    return f"sha256:{sha256.hexdigest()}"


def _refuse_twins(uploads: Iterable[tuple[str, str, Path]]) -> None:
    """Raise if a file would take another's place under its name."""
    seen: dict[tuple[str, str], Path] = {}
    for field, name, file in uploads:
        other = seen.setdefault((field, name), file)
        if other != file:
            raise InvalidModelfile(f"two files have the same name: {other} and {file}", "rename one of them")


def _files(text: str, folder: Path, command: str) -> dict[str, Path]:
    """Return the files that ``text`` names by what they are called there, none if it is a model's name.

    Names are relative to the Modelfile's folder, or to the one that ``text`` names if that lies elsewhere.
    """
    path = Path(os.path.normpath(folder / Path(text).expanduser()))
    if path.is_file():
        files, root = _with_other_shards(path), path.parent
    elif path.is_dir():
        files, root = list(_folder_files(path)), path
    elif text.startswith((".", "/", "~")) or text.endswith((".gguf", ".safetensors")):
        raise InvalidModelfile(f"{command} names a file that does not exist: {path}", "correct the path")
    else:
        return {}
    start = folder if path.is_relative_to(folder) else root
    return {str(file.relative_to(start)): file for file in files}


def _existing(text: str, folder: Path, command: str) -> dict[str, Path]:
    files = _files(text, folder, command)
    if not files:
        raise InvalidModelfile(
            f"{command} names a file that does not exist: {folder / text}", "correct the path"
        )
    return files


def _with_other_shards(file: Path) -> list[Path]:
    """Return the file, or all shards of the model of which it is one."""
    match = _SHARD.fullmatch(file.name)
    if match is None:
        return [file]
    shards = [
        file.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}.gguf") for number in range(int(match[3]))
    ]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InvalidModelfile(
            f"shards of {file.name} are missing: {' '.join(missing[:5])}",
            f"put all {len(shards)} in one folder",
        )
    return shards


def _one_model(files: list[Path]) -> list[Path]:
    """Return the GGUF files of a folder; raise InvalidModelfile if shards are not all, or not alone."""
    models = [file for file in files if not file.name.startswith(_PROJECTOR)] or files
    stems = {match[1] if (match := _SHARD.fullmatch(file.name)) else file.name for file in models}
    if all(file.name in stems for file in models):
        return models  # shards may have other names: the daemon looks into them
    if len(stems) > 1:
        raise InvalidModelfile(
            f"the folder has {len(stems)} models: {' '.join(sorted(stems)[:5])}", "name the file of one"
        )
    return _with_other_shards(models[0])


def _folder_files(folder: Path) -> Iterator[Path]:
    for patterns in _MODEL_PATTERNS:
        found = _matching(folder, patterns)
        if found:
            yield from found if found[0].suffix != ".gguf" else _one_model(found)
            if found[0].suffix != ".gguf":
                for parent in sorted({path.parent for path in found}):
                    yield from _matching(parent, _SIDE_PATTERNS)
            return
    raise InvalidModelfile(f"no GGUF or safetensors files in the folder: {folder}", "name the file itself")


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    homes = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":  # Hugging Face's cache: links to files beside it
        homes.append(folder.resolve().parents[1] / "blobs")
    for path in found:
        if not any(path.resolve().is_relative_to(home) for home in homes):
            raise InvalidModelfile(f"insecure path: {path}", "copy the file into the folder")
    return found
