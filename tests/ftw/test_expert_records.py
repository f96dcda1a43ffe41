"""Experts on their way into records: each is read once, in order, and what lies staged is not read again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ftd.ftw import expert_records
from ftd.kernels.quant import QuantMatrix


@dataclass(frozen=True)
class Part:
    """What each expert of a layer has of one role."""

    layer: int
    role: str
    format: str = "f32"
    shape: tuple[int, int] = (2, 3)


class Writer:
    """Stands for FtwWriter; the records in ``staged`` were written by an earlier conversion."""

    def __init__(self, staged: int = 0) -> None:
        self.staged = staged
        self.begun: Any = None
        self.records: list[Any] = []

    def begin_experts(self, num_experts: int, layers: list[int], tensors: Any) -> None:
        self.begun = num_experts, layers, tensors

    def has_expert(self, number: int) -> bool:
        return number < self.staged

    def add_expert(self, matrices: Any) -> None:
        self.records.append(matrices)


LAYERS = {
    3: [Part(3, "gate_up", "q8_0", (64, 32)), Part(3, "down")],
    7: [Part(7, "down", shape=(5, 1))],
}


def read(part: Part, expert: int) -> QuantMatrix:
    """Return a matrix whose values name where it is from."""
    values = np.full(part.shape, part.layer * 100 + expert, np.float32)
    return QuantMatrix("f32", part.shape, (values,))


@pytest.mark.parametrize("staged", [0, 1, 4, 8])
def test_records_come_layer_by_layer_and_staged_ones_are_not_read(staged: int) -> None:
    writer, done, reads = Writer(staged), [], []

    def noted(part: Part, expert: int) -> QuantMatrix:
        reads.append((part.layer, expert, part.role))
        return read(part, expert)

    expert_records.write(
        writer,  # type: ignore[arg-type]
        LAYERS,
        4,
        read=noted,
        source_bytes=lambda parts: 10 * len(parts) + 3,
        done=done.append,
    )
    assert writer.begun == (
        4,
        [3, 7],
        [[("gate_up", "q8_0", (64, 32)), ("down", "f32", (2, 3))], [("down", "f32", (5, 1))]],
    )
    wanted = [(layer, expert) for layer in (3, 7) for expert in range(4)]
    assert reads == [
        (layer, expert, part.role) for layer, expert in wanted[staged:] for part in LAYERS[layer]
    ]
    assert len(writer.records) == 8 and writer.records[:staged] == [None] * staged
    for (layer, expert), record in list(zip(wanted, writer.records, strict=True))[staged:]:
        assert list(record) == [part.role for part in LAYERS[layer]]
        assert all((matrix.planes[0] == layer * 100 + expert).all() for matrix in record.values())
    # progress counts staged records too, and ends at all bytes though no layer divides by four
    assert len(done) == 8 and sum(done[:4]) == 23 and sum(done) == 23 + 13


def test_one_expert_is_read_while_its_predecessor_is_written_and_no_more() -> None:
    """Of a bank larger than memory two records are there at a time."""
    writer = Writer()
    alive: list[int] = []

    def noted(part: Part, expert: int) -> QuantMatrix:
        assert len(alive) - len(writer.records) < 2, "read too far ahead"
        alive.append(expert)
        return read(part, expert)

    layers = {0: [Part(0, "down")]}
    expert_records.write(
        writer,  # type: ignore[arg-type]
        layers,
        20,
        read=noted,
        source_bytes=lambda parts: 20,
        done=lambda num_bytes: None,
    )
    assert alive == list(range(20)) and len(writer.records) == 20


def test_an_error_of_a_read_is_raised_when_all_before_it_are_written() -> None:
    writer = Writer()

    def broken(part: Part, expert: int) -> QuantMatrix:
        if expert == 2:
            raise OSError("the disk is gone")
        return read(part, expert)

    with pytest.raises(OSError, match="the disk is gone"):
        expert_records.write(
            writer,  # type: ignore[arg-type]
            LAYERS,
            4,
            read=broken,
            source_bytes=lambda parts: 1,
            done=lambda num_bytes: None,
        )
    assert len(writer.records) == 2
