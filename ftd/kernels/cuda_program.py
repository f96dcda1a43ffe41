"""The ops of a recorded GPU program: what each reads and writes, and the kernels it launches.

Buffers are handles until ``CudaGraph.finish`` gives them memory. An op launches kernels on the current stream
and never waits for the device, so that a program can be captured.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ftd.kernels.add_triton import add_into
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.embedding_triton import embedding_into
from ftd.kernels.gated_matmul_triton import gated_matmul
from ftd.kernels.matmul_triton import Scaled, Scaling, matmul_into
from ftd.kernels.product_launch import squared_tiles
from ftd.kernels.rms_norm_triton import rms_norm_into
from ftd.kernels.rope_triton import rope_into
from ftd.kernels.select_logit_rows_triton import select_logit_rows_into
from ftd.kernels.swiglu_triton import gated_into

# Steps of so many rows stream weights instead of multiplying tiles; the norm before a product is then free.
MAX_STREAMED_ROWS = 16


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Handle of activations [rows, width]; ``tensor`` is given by the graph when recording has ended."""

    width: int
    kind: Literal["tokens", "logits"]
    tensor: torch.Tensor | None = None

    def rows(self, step: DeviceStep) -> torch.Tensor:
        """Return the rows of ``step``."""
        assert self.tensor is not None
        return self.tensor[: step.num_tokens if self.kind == "tokens" else step.num_logits]


class Op:
    """One entry of a program; the names of its fields that are read, written, and must be f32.

    What is updated in place is both read and written. f32: sums that grow over layers, and what decides
    between experts.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()
    EXACT: ClassVar[tuple[str, ...]] = ()

    def run(self, step: DeviceStep) -> None:
        """Launch the op's kernels."""
        raise NotImplementedError

    def is_fixed(self, num_tokens: int) -> bool:
        """Return whether a prompt's launches depend on sizes alone, so that they can be captured."""
        return True

    def buffers(self, names: tuple[str, ...]) -> list[DeviceBuffer]:
        """Return the buffers in the fields ``names``."""
        found: list[DeviceBuffer] = []
        for name in names:
            value = getattr(self, name)
            found += value if isinstance(value, list) else [] if value is None else [value]
        return found


@dataclass(eq=False)
class Embed(Op):
    """out = scale * weight[ids]."""

    READS, WRITES, EXACT = (), ("out",), ("out",)
    out: DeviceBuffer
    weight: DeviceMatrix
    scale: float

    def run(self, step: DeviceStep) -> None:
        embedding_into(step.ids, self.weight, self.scale, out=self.out.rows(step))


@dataclass(eq=False)
class RmsNorm(Op):
    """out = norm(x) * weight over rows of ``channels`` (all of x, or each head)."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    eps: float

    def run(self, step: DeviceStep) -> None:
        channels = self.weight.shape[0]
        x, out = self.x.rows(step), self.out.rows(step)
        if channels != self.x.width:
            # Heads of one row are no rows of a column view; q and k of one group are fused, see cuda_fusion
            x, out = (heads_of(each, channels) for each in (x, out))
        rms_norm_into(x, self.weight, self.eps, out=out)


@dataclass(eq=False)
class AddNorm(Op):
    """x += scale * y, then out = norm(x) * weight."""

    READS, WRITES, EXACT = ("x", "y"), ("x", "out"), ("x",)
    out: DeviceBuffer
    x: DeviceBuffer
    y: DeviceBuffer
    scale: float
    weight: torch.Tensor
    eps: float

    def run(self, step: DeviceStep) -> None:
        rms_norm_into(
            self.x.rows(step),
            self.weight,
            self.eps,
            out=self.out.rows(step),
            add=self.y.rows(step),
            add_scale=self.scale,
        )


@dataclass(eq=False)
class Add(Op):
    """out += scale * x."""

    READS, WRITES, EXACT = ("out", "x"), ("out",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    scale: float

    def run(self, step: DeviceStep) -> None:
        add_into(self.x.rows(step), self.scale, out=self.out.rows(step))


class NormedProduct(Op):
    """A product that may take the norm of its rows upon itself.

    norm: of x. writer: the product that scales what is normalised, if the norm lies between the two.
    """

    x: DeviceBuffer
    norm: RmsNorm | None
    writer: "Product | None"

    @property
    def unnormed(self) -> DeviceBuffer | None:
        """What the norm takes."""
        return None if self.norm is None else self.norm.x

    @property
    def normed(self) -> DeviceBuffer | None:
        """Where many rows lie after the norm; nobody else reads it."""
        return None if self.norm is None else self.norm.out

    def normalised(self, step: DeviceStep) -> tuple[torch.Tensor, tuple[torch.Tensor, float] | Scaled | None]:
        """Return the rows that the kernel takes and what it does to them for the norm.

        Few rows are normalised by the kernels that stream the weights; many are before it, once.
        """
        norm, writer = self.norm, self.writer
        if norm is None:
            return self.x.rows(step), None
        if step.num_tokens <= MAX_STREAMED_ROWS:
            if writer is None:
                return norm.x.rows(step), (norm.weight, norm.eps)
            tiles = squared_tiles(writer.weight, step.num_tokens, writer.precision)
            return norm.out.rows(step), Scaled(norm.eps, tiles)
        norm.run(step)
        return norm.out.rows(step), None


@dataclass(eq=False)
class Product(NormedProduct):
    """outs = x W^T + bias; several outs are neighbouring columns of one tensor. ``add``: outs += x W^T.

    following: the norm of outs that this product is the ``writer`` of.
    """

    READS, WRITES = ("x", "unnormed", "added"), ("outs", "scaled", "normed")
    outs: list[DeviceBuffer]
    x: DeviceBuffer
    weight: DeviceMatrix
    bias: torch.Tensor | None
    precision: str
    add: bool = False
    norm: RmsNorm | None = None
    writer: "Product | None" = None
    following: RmsNorm | None = None

    @property
    def added(self) -> list[DeviceBuffer]:
        """What the product is added to."""
        return self.outs if self.add else []

    @property
    def scaled(self) -> DeviceBuffer | None:
        """What the product writes for the norm behind it."""
        return None if self.following is None else self.following.out

    def run(self, step: DeviceStep) -> None:
        out = joined([each.rows(step) for each in self.outs])
        x, norm = self.normalised(step)
        scaling = None
        if self.following is not None and step.num_tokens <= MAX_STREAMED_ROWS:
            scaling = Scaling(self.following.weight, self.following.out.rows(step))
        matmul_into(
            x, self.weight, self.bias, self.precision, out=out, add=self.add, norm=norm, scaling=scaling
        )


@dataclass(eq=False)
class GatedProduct(NormedProduct):
    """out = act(x G^T) * (x U^T); weight holds the rows of G, then those of U."""

    READS, WRITES = ("x", "unnormed"), ("out", "normed")
    out: DeviceBuffer
    x: DeviceBuffer
    weight: DeviceMatrix
    activation: Literal["silu", "gelu"]
    precision: str
    norm: RmsNorm | None = None
    writer: Product | None = None

    def run(self, step: DeviceStep) -> None:
        x, norm = self.normalised(step)
        gated_matmul(x, self.weight, self.activation, self.precision, out=self.out.rows(step), norm=norm)


@dataclass(eq=False)
class Gate(Op):
    """out = act(gate) * up, element by element."""

    READS, WRITES = ("gate", "up"), ("out",)
    out: DeviceBuffer
    gate: DeviceBuffer
    up: DeviceBuffer
    activation: Literal["silu", "gelu"]

    def run(self, step: DeviceStep) -> None:
        gated_into(self.gate.rows(step), self.up.rows(step), self.activation, out=self.out.rows(step))


@dataclass(eq=False)
class Rope(Op):
    """Rotate each head of x by its token's position."""

    READS, WRITES = ("x",), ("x",)
    x: DeviceBuffer
    num_heads: int
    inv_freq: torch.Tensor
    scale: float

    def run(self, step: DeviceStep) -> None:
        x = heads_of(self.x.rows(step), self.x.width // self.num_heads)
        rope_into(x, step.positions, self.inv_freq, self.scale, out=x)


@dataclass(eq=False)
class SelectRows(Op):
    """out = x[logit_rows]."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer

    def run(self, step: DeviceStep) -> None:
        select_logit_rows_into(self.x.rows(step), step.logit_rows, out=self.out.rows(step))


def heads_of(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Return x [T, H*C] as [T, H, C], whatever lies between its rows."""
    return x.as_strided((x.shape[0], x.shape[1] // channels, channels), (x.stride(0), channels, 1))


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the tensor whose neighbouring columns ``parts`` are."""
    first = parts[0]
    width = sum(part.shape[1] for part in parts)
    return first.as_strided((first.shape[0], width), first.stride())
