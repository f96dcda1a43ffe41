"""Experts of a checkpoint on their way into records: one expert is read while its predecessor is written."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from ftd.ftw.prefetch import prefetched
from ftd.ftw.writer import FtwWriter
from ftd.kernels.quant import QuantMatrix


class Part(Protocol):
    """What each expert of a layer has of one role; the shape is that of one expert."""

    @property
    def role(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int]: ...


AnyPart = TypeVar("AnyPart", bound=Part)


def write(
    writer: FtwWriter,
    layers: Mapping[int, Sequence[AnyPart]],
    num_experts: int,
    *,
    read: Callable[[AnyPart, int], QuantMatrix],
    source_bytes: Callable[[Sequence[AnyPart]], int],
    done: Callable[[int], None],
) -> None:
    """Write every record that the writer has not; ``done(num_bytes)`` hears of the source bytes of each.

    layers: number of a layer -> its parts. read(part, expert) brings what one expert has of a part.
    source_bytes: of all experts of a layer.
    """
    parts = list(layers.values())
    shapes = [[(part.role, part.format, part.shape) for part in layer] for layer in parts]
    writer.begin_experts(num_experts, list(layers), shapes)

    def record(layer: Sequence[AnyPart], expert: int) -> dict[str, QuantMatrix]:
        return {part.role: read(part, expert) for part in layer}

    reads = (
        _nothing if writer.has_expert(row * num_experts + expert) else partial(record, layer, expert)
        for row, layer in enumerate(parts)
        for expert in range(num_experts)
    )
    bytes_by_row = [source_bytes(layer) for layer in parts]
    for number, found in enumerate(prefetched(reads)):
        writer.add_expert(found)
        row, expert = divmod(number, num_experts)
        layer_bytes = bytes_by_row[row]
        done(layer_bytes * (expert + 1) // num_experts - layer_bytes * expert // num_experts)


def _nothing() -> None:
    """Read no record, for one that an earlier conversion wrote."""
