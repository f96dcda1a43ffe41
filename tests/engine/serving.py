"""Writes a tiny model as FTW and drives an engine on it in this process, collecting what it sends."""

from pathlib import Path
from typing import Any

from ftw_draft import draft

from ftd.engine.engine import Engine
from ftd.engine.loader import Source
from ftd.engine.messages import Embedded, Failed, Finished, Generate, Load, SamplingParams, Tokens, Up
from ftd.ftw import format as ftw_format
from ftd.ftw import reader
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import FtwWriter
from tests.engine.tiny import Tiny

GREEDY = SamplingParams(temperature=0.0)


def write_ftw(model: Tiny, folder: Path) -> Load:
    """Write ``model`` into ``folder`` and return the message that loads it."""
    sink = DirectorySink(folder)
    config = draft(architecture=model.architecture, hyperparameters=model.hyperparameters)
    with FtwWriter(sink) as writer:
        for name, matrix in model.tensors.items():
            writer.add_matrix(name, matrix)
        if model.banks:
            layouts = [
                [(role, matrix.format, matrix.shape) for role, matrix in bank.matrices.items()]
                for bank in model.banks
            ]
            writer.begin_experts(model.banks[0].num_experts, [bank.layer for bank in model.banks], layouts)
            for bank in model.banks:
                for expert in range(bank.num_experts):
                    writer.add_expert({role: part.expert(expert) for role, part in bank.matrices.items()})
        written = writer.finish(config)
    return Load(
        config_path=str(sink.path(written.config_blob.digest)),
        blob_paths={blob.digest: str(sink.path(blob.digest)) for blob in written.weights},
        context_tokens=96,
        max_sequences=4,
        num_threads=1,
        precision="f32",
        prefill_chunk_tokens=32,
        debug_checks=True,
    )


def read_back(model: Tiny, folder: Path) -> tuple[ftw_format.FtwConfig, dict[str, Path]]:
    """Write ``model`` into ``folder`` and return its config as read from there, and its blobs."""
    load = write_ftw(model, folder)
    paths = {digest: Path(path) for digest, path in load.blob_paths.items()}
    return reader.read_config(Path(load.config_path)), paths


class Serving:
    """An engine and the messages it sent; ``source`` stands for the files that ``load`` names."""

    def __init__(self, load: Load, source: Source | None = None) -> None:
        self.sent: list[Up] = []
        self.engine = Engine(load, self.sent.append, source=source)
        self.next_id = 0

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def start(self, ids: list[int], **fields: Any) -> int:
        """Queue a greedy request and return its id."""
        self.next_id += 1
        fields = {"sampling": GREEDY, "max_tokens": 12} | fields
        self.engine.generate(Generate(request_id=self.next_id, ids=ids, **fields))
        return self.next_id

    def run(self, steps: int = 10000) -> None:
        """Run steps while there is work."""
        while self.engine.has_work and steps > 0:
            self.engine.step()
            steps -= 1

    def tokens(self, request_id: int) -> list[int]:
        """Return the ids sent for a request."""
        parts = [m.ids for m in self.sent if isinstance(m, Tokens) and m.request_id == request_id]
        return [token for part in parts for token in part]

    def finished(self, request_id: int) -> Finished:
        """Return the one message that ended a request."""
        (message,) = [m for m in self.sent if isinstance(m, Finished) and m.request_id == request_id]
        return message

    def embedded(self, request_id: int) -> Embedded:
        """Return the vectors sent for a request."""
        (message,) = [m for m in self.sent if isinstance(m, Embedded) and m.request_id == request_id]
        return message

    def failed(self) -> list[Failed]:
        """Return the failures sent."""
        return [message for message in self.sent if isinstance(message, Failed)]
