"""``ftd create``: read a Modelfile, upload the files that it names, ask the daemon to make the model."""

import argparse
import hashlib
import os.path
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ftd.chat.modelfile import Modelfile, parse_modelfile
from ftd.cli import background, output
from ftd.cli.client import Client
from ftd.cli.progress import Progress
from ftd.errors import InvalidModelfile

_CHUNK_BYTES = 4 << 20
# the first group that has a file is the model; the side files go with all but GGUF
_MODEL_PATTERNS: tuple[tuple[str, ...], ...] = (
    ("freetoken-*.ftw",),
    ("model*.safetensors", "*/model*.safetensors"),
    ("consolidated*.safetensors",),
    ("*.gguf",),
)
_SIDE_PATTERNS = ("*.json", "*_Pooling/config.json", "chat_template.jinja", "tokenizer.model")


def run(options: argparse.Namespace) -> int:
    """Create ``options.model`` from the Modelfile."""
    path = Path(options.file or "Modelfile")
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as exc:
        hint = f"no such file: {path}" if options.file else "use -f FILE"
        raise InvalidModelfile("specified Modelfile wasn't found", hint) from exc
    modelfile = parse_modelfile(data, str(path))
    for warning in modelfile.warnings:
        output.note(f"warning: {warning}")
    folder = path.resolve().parent
    with Progress() as progress:
        progress.status("gathering model components")
        body, uploads = request(options.model, modelfile, folder, options.quantize)
        client = background.connect()
        for name, file in uploads:
            digest = upload(client, file, progress)
            body[name][_relative(file, folder)] = digest
        for item in client.stream("/api/create", body):
            status, total = str(item.get("status", "")), item.get("total")
            if total:
                progress.bar(status, int(item.get("completed", 0)), int(total))
            else:
                progress.status(status)
    return 0


def request(
    model: str, modelfile: Modelfile, folder: Path, quantize: str | None = None
) -> tuple[dict[str, Any], list[tuple[str, Path]]]:
    """Return the body of ``/api/create`` without digests, and the files to upload as (field, path).

    Raises InvalidModelfile for a file that is not there.
    """
    body: dict[str, Any] = {"model": model}
    uploads: list[tuple[str, Path]] = []
    for text in modelfile.from_:
        files = _files(text, folder, "FROM")
        if files:
            uploads += [("files", file) for file in files]
        else:
            body["from"] = text
    if modelfile.adapter is not None:
        uploads += [("adapters", file) for file in _existing(modelfile.adapter, folder, "ADAPTER")]
    for text in modelfile.drafts:
        uploads += [("draft_files", file) for file in _existing(text, folder, "DRAFT")]
    for field, _ in uploads:
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


def _files(text: str, folder: Path, command: str) -> list[Path]:
    """Return the files that ``text`` names, none if it is a model's name."""
    path = Path(os.path.normpath(folder / Path(text).expanduser()))
    if path.is_file():
        return [path]
    if path.is_dir():
        return list(_folder_files(path))
    if text.startswith((".", "/", "~")) or text.endswith((".gguf", ".safetensors")):
        raise InvalidModelfile(f"{command} names a file that does not exist: {path}", "correct the path")
    return []


def _existing(text: str, folder: Path, command: str) -> list[Path]:
    files = _files(text, folder, command)
    if not files:
        raise InvalidModelfile(
            f"{command} names a file that does not exist: {folder / text}", "correct the path"
        )
    return files


def _folder_files(folder: Path) -> Iterator[Path]:
    for patterns in _MODEL_PATTERNS:
        found = _matching(folder, patterns)
        if found:
            yield from found
            if found[0].suffix != ".gguf":
                for parent in sorted({path.parent for path in found}):
                    yield from _matching(parent, _SIDE_PATTERNS)
            return
    raise InvalidModelfile(f"no GGUF or safetensors files in the folder: {folder}", "name the file itself")


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    for path in found:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InvalidModelfile(f"insecure path: {path}", "copy the file into the folder")
    return found


def _relative(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name
