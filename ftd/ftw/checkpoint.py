"""A Hugging Face checkpoint as one set of tensors: config.json, one or many safetensors files, side files.

Files are given by the names that they had in their folder (the daemon keeps their bytes elsewhere). With an
index the shards and tensors must be exactly those that it names; without one all model*.safetensors count.
"""

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ftd.errors import InvalidCheckpoint
from ftd.ftw import hf_names
from ftd.ftw.safetensors import MAX_TENSORS, SafetensorsFile, StoredTensor

MAX_SIDE_BYTES = 256 << 20  # the largest tokenizer.json known have 35 MB
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", re.ASCII | re.DOTALL)


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the text alone, which models of text and pictures nest in ``text_config``."""
    nested = config.get("text_config")
    if config.get("model_type") not in hf_names.COMPOSITES or not isinstance(nested, dict):
        return config
    kept = {name: config[name] for name in ("model_type", "tie_word_embeddings") if name in config}
    return config | nested | kept


class Checkpoint:
    """Open shards, their tensors by name, and the side files beside them."""

    suffix = ".safetensors"

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Open the checkpoint whose files are ``files``: relative name -> where it lies."""
        self._shards: list[SafetensorsFile] = []
        weights = [name for name in files if name.endswith(self.suffix)]
        folders = sorted({os.path.dirname(name) for name in weights})
        if len(folders) != 1:
            raise InvalidCheckpoint(
                f"the {self.suffix[1:]} files lie in {len(folders)} folders: {folders!r:.200}"
            )
        prefix = f"{folders[0]}/" if folders[0] else ""
        self._files = {
            name.removeprefix(prefix): path for name, path in sorted(files.items()) if name.startswith(prefix)
        }
        config = self.json("config.json")
        if config is None:
            raise InvalidCheckpoint("config.json is missing", "give all files of the folder")
        self.config = _text_config(config)
        with ExitStack() as opened:
            opened.callback(self.close)
            self.tensors = hf_names.canonical(self._open(), config.get("model_type"))
            opened.pop_all()

    @property
    def shard_names(self) -> list[str]:
        """The names of the files of weights."""
        return [shard.label for shard in self._shards]

    def side(self, name: str) -> bytes | None:
        """Return the bytes of a side file, None if there is none."""
        path = self._files.get(name)
        if path is None:
            return None
        try:
            size = path.stat().st_size
            if size > MAX_SIDE_BYTES:
                raise InvalidCheckpoint(f"{name} is larger than {MAX_SIDE_BYTES} bytes: {size}")
            return path.read_bytes()
        except OSError as exc:
            raise InvalidCheckpoint(f"cannot read {name}: {exc.strerror}") from exc

    def json(self, name: str) -> dict[str, Any] | None:
        """Return a side file that holds a JSON object, None if there is none."""
        data = self.side(name)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise InvalidCheckpoint(f"{name} is not a JSON object: {exc}"[:300]) from exc

    def close(self) -> None:
        """Close all files."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> dict[str, StoredTensor]:
        index = self._index()
        names = sorted(set(index.values())) if index else self._unindexed()
        tensors: dict[str, StoredTensor] = {}
        for name in names:
            if name not in self._files:
                raise InvalidCheckpoint(f"shard {name} is missing", "give all files of the folder")
            shard = SafetensorsFile(self._files[name], name)
            self._shards.append(shard)
            for tensor in shard.tensors:
                if tensor.name in tensors:
                    raise InvalidCheckpoint(f"two shards have the same tensor: {tensor.name}")
                tensors[tensor.name] = tensor
                if index and index.get(tensor.name) != name:
                    raise InvalidCheckpoint(f"{INDEX} does not place tensor {tensor.name} in {name}")
        missing = [name for name in index if name not in tensors]
        if missing:
            raise InvalidCheckpoint(f"tensor {missing[0]} is missing in {index[missing[0]]}")
        if len(tensors) > MAX_TENSORS:
            raise InvalidCheckpoint(f"more than {MAX_TENSORS} tensors: {len(tensors)}")
        return tensors

    def _index(self) -> dict[str, str]:
        index = self.json(INDEX)
        if index is None:
            return {}
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InvalidCheckpoint(f"{INDEX} has no weight_map")
        for name, shard in weight_map.items():
            if not isinstance(shard, str):
                raise InvalidCheckpoint(f"{INDEX} places {name!r:.100} in no file: {shard!r:.50}")
        return weight_map

    def _unindexed(self) -> list[str]:
        names = sorted(name for name in self._files if name.endswith(".safetensors"))
        for name in names:
            match = _SHARD.fullmatch(name)
            if match is None:
                continue
            stem, total = match[1], int(match[3])
            if len(names) != total:
                raise InvalidCheckpoint(f"{stem} has {total} shards, {len(names)} are given")
        return names
