"""The one tree of errors. Classes know no HTTP; ``ftd.api.api_errors`` maps them to statuses.

    FtdError(message, hint=None)
    ├── InvalidRequest     InvalidName · InvalidDigest · InvalidModelfile · InvalidOption · InvalidTemplate
    │                      DigestMismatch · PromptTooLong · Unsupported
    │                      UploadOutOfOrder
    ├── Unauthorized
    ├── Forbidden
    ├── NotFound           ModelNotFound · BlobNotFound · UploadNotFound
    ├── Conflict
    ├── Busy
    ├── TransferError      InsufficientSpace
    ├── CorruptData        InvalidFtw · InvalidGguf · InvalidCheckpoint · DamagedBlob
    └── EngineError        OutOfMemory · EngineDied · KernelUnavailable

A message states the fact with the values (lower case, no full stop); the hint is one imperative sentence.
"""


class FtdError(Exception):
    """Base of every error that ftd raises on purpose; survives pickling and the engine socket."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class InvalidRequest(FtdError):
    """The caller sent something that can never work."""


class InvalidName(InvalidRequest):
    """A model name breaks the grammar of names."""


class InvalidDigest(InvalidRequest):
    """A digest is not ``sha256:`` and 64 lower-case hexadecimal digits."""


class InvalidModelfile(InvalidRequest):
    """A Modelfile does not parse; the message carries the line number."""


class InvalidOption(InvalidRequest):
    """An option or configuration value has the wrong type or range."""


class InvalidTemplate(InvalidRequest):
    """A chat template does not parse, or failed, or exceeded its limits while rendering."""


class DigestMismatch(InvalidRequest):
    """Uploaded bytes do not hash to the digest they were sent under."""


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context window; both numbers are in the message."""


class Unsupported(InvalidRequest):
    """The model or build cannot do what was asked."""


class UploadOutOfOrder(InvalidRequest):
    """A chunk does not start where the upload ends."""

    def __init__(self, message: str, hint: str | None = None, offset: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, offset)
        self.offset = offset


class Unauthorized(FtdError):
    """Credentials are missing or wrong."""


class Forbidden(FtdError):
    """The caller may not do this (host check, origin, private registry address)."""


class NotFound(FtdError):
    """The named thing does not exist."""


class ModelNotFound(NotFound):
    """No manifest has this model name."""


class BlobNotFound(NotFound):
    """No blob has this digest."""


class UploadNotFound(NotFound):
    """The upload id is unknown or expired."""


class Conflict(FtdError):
    """The request clashes with the present state."""


class Busy(FtdError):
    """The queue is full; try again later."""


class TransferError(FtdError):
    """Another registry failed, or sent bytes that do not match, after retries."""


class InsufficientSpace(TransferError):
    """The file system has less free space than the transfer needs."""


class CorruptData(FtdError):
    """Bytes on our own disk, or in a file given to us, are not what they claim."""


class InvalidFtw(CorruptData):
    """An FTW config or blob breaks the format."""


class InvalidGguf(CorruptData):
    """A GGUF file breaks the format or uses something unknown."""


class InvalidCheckpoint(CorruptData):
    """A Hugging Face checkpoint breaks its format, lacks a file, or contradicts its own config."""


class DamagedBlob(CorruptData):
    """A stored blob no longer has its digest or size."""


class EngineError(FtdError):
    """The engine could not do its work."""


class OutOfMemory(EngineError):
    """The plan needs more memory than there is; needed and available are in the message."""


class EngineDied(EngineError):
    """The engine process ended while it was needed."""


class KernelUnavailable(EngineError):
    """No implementation of an op runs on this device."""


def by_name(kind: str) -> type[FtdError]:
    """Return the class called ``kind``, or ``EngineError`` for a name this build does not know."""
    pending: list[type[FtdError]] = [FtdError]
    while pending:
        cls = pending.pop()
        if cls.__name__ == kind:
            return cls
        pending.extend(cls.__subclasses__())
    return EngineError
