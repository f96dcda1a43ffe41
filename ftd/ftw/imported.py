"""What every importer hands back, and how it tells of its progress."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ftd import __version__
from ftd.ftw.format import TOKENIZER_MEDIA_TYPE, FtwConfig, Json
from ftd.ftw.sink import BlobSink
from ftd.ftw.writer import BlobDescriptor, WrittenModel

Progress = Callable[[int, int], None]
# Goes up when an importer makes other bytes of the same source: staged bytes of older ones do not fit then
CONVERSION = 1


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """What an import made: the config blob, the other blobs, and what other layers of the manifest hold."""

    config: FtwConfig
    config_digest: str
    config_size: int
    blobs: tuple[BlobDescriptor, ...]
    chat_template: str | None
    system: str | None = None
    parameters: dict[str, Json] = field(default_factory=dict)


def conversion_key(files: Mapping[str, str], quantization: str | None) -> str:
    """Return a key for FtwWriter: name -> digest of the source's files, and what they are converted to."""
    facts = [
        str(CONVERSION),
        __version__,
        quantization or "",
        *(f"{n}={d}" for n, d in sorted(files.items())),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def write_tokenizer(sink: BlobSink, data: bytes) -> BlobDescriptor:
    """Store a ``tokenizer.json``."""
    with sink.new() as blob:
        blob.write(data)
        return BlobDescriptor(TOKENIZER_MEDIA_TYPE, *blob.commit())


def imported(written: WrittenModel, tokenizer: BlobDescriptor, chat_template: str | None) -> ImportedModel:
    """Return the result of an import."""
    return ImportedModel(
        config=written.config,
        config_digest=written.config_blob.digest,
        config_size=written.config_blob.size,
        blobs=(*written.weights, tokenizer),
        chat_template=chat_template or None,
    )


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""
