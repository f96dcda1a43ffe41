"""The ops of encoders in a recorded GPU program: norms with a mean, gelu, attention in both directions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.cuda_attention import Attention
from ftd.kernels.cuda_memory import DeviceMemory
from ftd.kernels.cuda_program import DeviceBuffer, Op
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.gelu_triton import gelu_into
from ftd.kernels.layer_norm_triton import layer_norm_into
from ftd.kernels.position_embedding_triton import last_positions, position_embedding_into
from ftd.kernels.reference_encoder import check_table
from ftd.kernels.shapes import expect
from ftd.kernels.step import Limits

Floats = NDArray[np.float32]


@dataclass(eq=False)
class AddPositions(Op):
    """x += table[positions]."""

    READS, WRITES, EXACT = ("x",), ("x",), ("x",)
    x: DeviceBuffer
    table: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        x = self.x.rows(step)
        position_embedding_into(x, step.positions, self.table, out=x)


@dataclass(eq=False)
class LayerNorm(Op):
    """out = (x - mean) / deviation * weight + bias."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def run(self, step: DeviceStep) -> None:
        layer_norm_into(self.x.rows(step), self.weight, self.bias, self.eps, out=self.out.rows(step))


@dataclass(eq=False)
class Gelu(Op):
    """out = gelu(x), with the error function."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer

    def run(self, step: DeviceStep) -> None:
        gelu_into(self.x.rows(step), out=self.out.rows(step))


@dataclass(eq=False)
class LastPositions(Op):
    """The last position of the sequence that each token belongs to; once a step."""

    found: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        last_positions(step.q_start, step.kv_len, out=self.found[: step.num_tokens])


@dataclass(eq=False)
class WholeAttention(Attention):
    """Attention of each token over its whole sequence: as if each were the last one."""

    last: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        super().run(replace(step, positions=self.last[: step.num_tokens]))


class EncoderOps:
    """The part of CudaGraph that records what encoders have and decoders have not."""

    _limits: Limits
    _memory: DeviceMemory
    _record: Callable[[Op], None]
    _last_positions: torch.Tensor | None

    def position_embedding(self, x: DeviceBuffer, table: Floats) -> None:
        """Record x += table[positions]; ``table`` [S, D] has a row for each position that can be."""
        check_table(table, x.width, self._limits)
        self._record(AddPositions(x, self._memory.vector(table)))

    def layer_norm(
        self, out: DeviceBuffer, x: DeviceBuffer, weight: Floats, bias: Floats, eps: float
    ) -> None:
        """Record out = layer_norm(x, weight, bias, eps); ``out`` may be ``x``."""
        expect("weight", weight, "float32", (x.width,))
        expect("bias", bias, "float32", (x.width,))
        self._record(LayerNorm(out, x, self._memory.vector(weight), self._memory.vector(bias), eps))

    def gelu(self, out: DeviceBuffer, x: DeviceBuffer) -> None:
        """Record out = gelu(x), with the error function; ``out`` may be ``x``."""
        self._record(Gelu(out, x))

    def _whole(self, attention: Attention) -> WholeAttention:
        """Return ``attention`` in both directions; the first one records where sequences end."""
        if self._last_positions is None:
            shape, device = (self._limits.max_tokens,), self._memory.device
            self._last_positions = torch.zeros(shape, dtype=torch.int32, device=device)
            self._memory.buffer_bytes += 4 * self._limits.max_tokens
            self._record(LastPositions(self._last_positions))
        fields = {name: getattr(attention, name) for name in Attention.__dataclass_fields__}
        return WholeAttention(**fields, last=self._last_positions)
