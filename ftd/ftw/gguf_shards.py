"""A GGUF model in one or many files: shards are found beside each other, ordered and joined.

model-00001-of-00003.gguf …      split.no 0 …, split.count 3; the first shard has the metadata of the model
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ftd.errors import InvalidGguf
from ftd.ftw.gguf import GgufFile, TensorInfo

MAX_SHARDS = 4096
_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.ASCII)


class GgufModel:
    """The shards of one model as one: metadata of the first shard, tensors of all. Owns the open files."""

    def __init__(self, files: list[GgufFile]) -> None:
        self.files = files
        self.metadata = files[0].metadata
        self.source: dict[str, tuple[GgufFile, TensorInfo]] = {}
        for file in files:
            for tensor in file.tensors:
                if tensor.name in self.source:
                    raise InvalidGguf(f"tensor {tensor.name!r} is in two shards")
                self.source[tensor.name] = (file, tensor)
        wanted = self.metadata.get("split.tensors.count")
        if isinstance(wanted, int) and wanted != len(self.source):
            raise InvalidGguf(f"the shards have {len(self.source)} tensors instead of {wanted}")

    @classmethod
    def open(cls, paths: Sequence[Path]) -> "GgufModel":
        """Open one file, any one shard of a set (the others lie beside it), or all shards in any order."""
        if not paths:
            raise InvalidGguf("no GGUF file given")
        with ExitStack() as opened:
            files = [opened.enter_context(GgufFile.open(paths[0]))]
            count = _split(files[0], "split.count", 1)
            if not 1 <= count <= MAX_SHARDS:
                raise InvalidGguf(f"split.count is not between 1 and {MAX_SHARDS}: {count}")
            if len(paths) == 1 and count > 1:
                paths = [paths[0], *(path for path in shard_paths(paths[0], count) if path != paths[0])]
            if count == 1 and len(paths) > 1:
                raise InvalidGguf(
                    f"{len(paths)} GGUF files are given, and one of them is a whole model",
                    "give that of one model",
                )
            if len(paths) != count:
                raise InvalidGguf(f"the model has {count} shards, got {len(paths)}", "give all its files")
            files.extend(opened.enter_context(GgufFile.open(path)) for path in paths[1:])
            files.sort(key=lambda file: _split(file, "split.no", 0))
            if [(_split(file, "split.no", 0), _split(file, "split.count", 1)) for file in files] != [
                (number, count) for number in range(count)
            ]:
                raise InvalidGguf(f"the files are not shards 1 to {count} of one model")
            model = cls(files)
            opened.pop_all()  # it owns the files
            return model

    @property
    def tensors(self) -> Iterator[TensorInfo]:
        """All tensors, in the order of the files."""
        return (tensor for _, tensor in self.source.values())

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _split(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidGguf(f"{key} is not an integer: {value!r:.50}")
    return value


def shard_paths(path: Path, count: int) -> list[Path]:
    """Return the files of all ``count`` shards, given one of them; raise InvalidGguf if one is missing."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise InvalidGguf(
            f"{path.name} is one of {count} shards but is not called …-00001-of-{count:05}.gguf",
            "give all its files",
        )
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [other.name for other in paths if not other.exists()]
    if missing:
        raise InvalidGguf(f"shards are missing: {' '.join(missing)[:500]}")
    return paths
