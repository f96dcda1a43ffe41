"""What a recorded GPU program owns on its device: weights, small vectors, buffers, workspaces; counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.attention_triton import DecodeWorkspace, decode_workspace, num_parts
from ftd.kernels.cuda_experts import MOST_EXPERT_ROWS, Experts, Router
from ftd.kernels.cuda_program import DeviceBuffer, GatedProduct, Op, Product, SelectRows
from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.device_weights import DeviceWeights, allocate
from ftd.kernels.expert_workspace import Workspace
from ftd.kernels.matmul_triton import reserve
from ftd.kernels.quant import ExpertBank, QuantMatrix
from ftd.kernels.step import Limits

Floats = NDArray[np.float32]
T = TypeVar("T")


class DeviceMemory:
    """Allocates on ``device`` and remembers what is there while a program is recorded.

    ``buffer_bytes`` counts what was allocated beside weights; memory goes with the tensors.
    """

    def __init__(
        self, limits: Limits, precision: str, device: str, weights: DeviceWeights | None = None
    ) -> None:
        self._limits, self._precision, self.device = limits, precision, device
        self._vectors: dict[int, tuple[Floats, torch.Tensor]] = {}
        self._workspaces: dict[tuple[int, ...], DecodeWorkspace] = {}
        self._weights = weights or DeviceWeights(device)
        self.buffer_bytes = 0

    def forget(self) -> None:
        """Let go of the host's weights: recording has ended, and they are on the device."""
        self._weights.finish()
        self._vectors.clear()

    def matrix(self, weights: list[QuantMatrix]) -> DeviceMatrix:
        """Return ``weights``, stacked, on the device; the same weights are uploaded once."""
        return self._weights.matrix(weights)

    def vector(self, values: Floats) -> torch.Tensor:
        """Return ``values`` on the device; the same array is uploaded once while recording."""
        if id(values) not in self._vectors:
            self._vectors[id(values)] = values, torch.from_numpy(values.copy()).to(self.device)
        return self._vectors[id(values)][1]

    def bank(self, bank: ExpertBank) -> DeviceBank:
        """Return all experts of ``bank`` on the device."""
        return self._weights.bank(bank)

    def attention_workspace(self, num_heads: int, k_pages: torch.Tensor) -> DecodeWorkspace:
        """Return what programs that share keys leave for a merge; layers of one shape use the same memory."""
        _, groups, channels, _ = k_pages.shape
        key = (num_heads, groups, channels)
        if key not in self._workspaces:
            limits = self._limits
            keys = limits.max_pages_per_sequence * limits.page_size
            made = decode_workspace(limits.max_sequences, num_heads, groups, channels, keys, self.device)
            missing = num_parts(k_pages, num_heads) - made.parts.numel()
            if missing > 0:
                made = replace(made, parts=made.parts.new_empty(made.parts.numel() + missing))
            self._workspaces[key] = made
            self.buffer_bytes += 4 * (made.parts.numel() + made.counts.numel())
        return self._workspaces[key]

    def place_buffers(
        self,
        program: list[Op],
        buffers: list[DeviceBuffer],
        groups: dict[DeviceBuffer, tuple[DeviceBuffer, ...]],
    ) -> None:
        """Allocate what the program touches; buffers of one product are columns of one tensor.

        Also what products need beside them.
        """
        used = {each for op in program for each in op.buffers(op.READS) + op.buffers(op.WRITES)}
        exact = {each for op in program for each in op.buffers(op.EXACT)}
        exact |= {op.outs[0] for op in program if isinstance(op, Product) and op.add}
        exact |= {op.out for op in program if isinstance(op, Experts)}
        # Rows of logits are exact, those of hidden states as exact as what they are selected from
        selected = {op.out: op.x for op in program if isinstance(op, SelectRows)}
        count = {"tokens": self._limits.max_tokens, "logits": self._limits.max_logits}
        for buffer in buffers:
            if buffer not in used or buffer.tensor is not None:
                continue
            group = groups.get(buffer, (buffer,))
            if any(each not in used for each in group):
                group = (buffer,)
            source = selected.get(buffer, buffer)
            is_exact = self._precision == "f32" or source.kind == "logits"
            is_exact = is_exact or source in exact or not exact.isdisjoint(group)
            dtype = torch.float32 if is_exact else torch.bfloat16
            shape = (count[buffer.kind], sum(each.width for each in group))
            wide = torch.zeros(shape, dtype=dtype, device=self.device)
            self.buffer_bytes += wide.numel() * wide.element_size()
            for each, columns in zip(
                group, torch.split(wide, [each.width for each in group], 1), strict=True
            ):
                each.tensor = columns
        ops = [op.product if isinstance(op, Router) else op for op in program]
        products = [op for op in ops if isinstance(op, Product | GatedProduct)]
        if products:
            weights = [op.weight for op in products]
            self.buffer_bytes += reserve(weights, self._limits.max_tokens, self._precision, self.device)

    def place_expert_workspace(self, program: list[Op]) -> None:
        """Give all layers of experts one workspace that the largest step fits."""
        layers = [op for op in program if isinstance(op, Experts)]
        if not layers:
            return
        sizes = [
            (op.routing.num_chosen, op.bank.num_experts, *op.bank.matrices["down"].shape) for op in layers
        ]
        chosen, experts, width, inner = (max(each) for each in zip(*sizes, strict=True))
        workspace = Workspace.make(
            min(self._limits.max_tokens, MOST_EXPERT_ROWS),
            chosen,
            experts,
            width,
            inner,
            self._precision,
            self.device,
        )
        self.buffer_bytes += workspace.num_bytes
        for op in layers:
            op.workspace = workspace

    def allocate(self, make: Callable[[], T]) -> T:
        """Return what ``make`` allocates. Raises OutOfMemory if the device refuses."""
        return allocate(make)
