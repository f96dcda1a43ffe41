"""The ops of recurrent layers in a recorded GPU program, and how they are recorded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels import causal_conv_ref, gated_delta_ref
from ftd.kernels.causal_conv_triton import causal_conv_into
from ftd.kernels.cuda_memory import DeviceMemory
from ftd.kernels.cuda_program import DeviceBuffer, Op
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.gated_chunk_triton import ChunkWorkspace, chunk_workspace
from ftd.kernels.gated_delta_triton import gated_delta_into
from ftd.kernels.sigmoid_gate_triton import sigmoid_gate_into
from ftd.kernels.step import Limits

Floats = NDArray[np.float32]


@dataclass(eq=False)
class SigmoidGate(Op):
    """out = x * sigmoid(gate)."""

    READS, WRITES = ("x", "gate"), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    gate: DeviceBuffer

    def run(self, step: DeviceStep) -> None:
        sigmoid_gate_into(self.x.rows(step), self.gate.rows(step), out=self.out.rows(step))


@dataclass(eq=False)
class Convolution(Op):
    """out = silu(convolution of x over the tokens of each sequence); ``state`` keeps the last inputs."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    state: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        causal_conv_into(
            self.x.rows(step),
            self.weight,
            self.state,
            step.q_start,
            step.positions,
            step.state_index,
            kv_len=step.kv_len,
            out=self.out.rows(step),
        )


@dataclass(eq=False)
class DeltaRule(Op):
    """out = what each value head reads of its state, which forgets and is corrected token by token."""

    # The rates in f32: their errors stay in the state
    READS, WRITES, EXACT = ("qkv", "a", "b"), ("out",), ("a", "b")
    out: DeviceBuffer
    qkv: DeviceBuffer
    a: DeviceBuffer
    b: DeviceBuffer
    decay: torch.Tensor
    bias: torch.Tensor
    state: torch.Tensor
    key_heads: int
    tiled: bool
    workspace: ChunkWorkspace

    def run(self, step: DeviceStep) -> None:
        gated_delta_into(
            self.qkv.rows(step),
            self.a.rows(step),
            self.b.rows(step),
            self.decay,
            self.bias,
            self.state,
            self.key_heads,
            step.q_start,
            step.positions,
            step.state_index,
            self.tiled,
            kv_len=step.kv_len,
            out=self.out.rows(step),
            workspace=self.workspace,
        )


class StateOps:
    """The part of CudaGraph that records ops with a state; each step names every sequence's slot."""

    _limits: Limits
    _memory: DeviceMemory
    _chunk_workspaces: dict[tuple[int, ...], ChunkWorkspace]
    _record: Callable[[Op], None]
    _num_states: int

    def sigmoid_gate(self, out: DeviceBuffer, x: DeviceBuffer, gate: DeviceBuffer) -> None:
        """Record out = x * sigmoid(gate); ``out`` may be ``x``."""
        self._record(SigmoidGate(out, x, gate))

    def causal_conv(self, out: DeviceBuffer, x: DeviceBuffer, weight: Floats, state: torch.Tensor) -> None:
        """Record out = silu(convolution of x with weight [C, K]); ``state`` [slots, K-1, C] is kept."""
        if out is x:
            raise ValueError("the convolution of a buffer cannot go to the buffer itself")
        causal_conv_ref.check_weights(x.width, weight, state)
        self._record_state(state, Convolution(out, x, self._memory.vector(weight), state))

    def gated_delta(
        self,
        out: DeviceBuffer,
        qkv: DeviceBuffer,
        a: DeviceBuffer,
        b: DeviceBuffer,
        decay: Floats,
        bias: Floats,
        state: torch.Tensor,
        key_heads: int,
        tiled: bool = False,
    ) -> None:
        """Record out = gated_delta(qkv, …); ``state`` [slots, Hv, Ck, Cv] is kept."""
        heads, _, channels = gated_delta_ref.check_weights(qkv.width, key_heads, decay, bias, state)
        if (a.width, b.width, out.width) != (heads, heads, heads * channels):
            raise ValueError(f"a, b and out must be {heads}, {heads} and {heads * channels} wide")
        weights = self._memory.vector(decay), self._memory.vector(bias)
        workspace = self._chunk_workspace(tuple(state.shape))
        self._record_state(state, DeltaRule(out, qkv, a, b, *weights, state, key_heads, tiled, workspace))

    def _chunk_workspace(self, shape: tuple[int, ...]) -> ChunkWorkspace:
        """Return the memory of chunks that all layers with states of ``shape`` share."""
        if shape not in self._chunk_workspaces:
            limits, device = self._limits, self._memory.device
            made = self._memory.allocate(
                lambda: chunk_workspace(limits.max_tokens, limits.max_sequences, shape, device)
            )
            self._chunk_workspaces[shape] = made
            self._memory.buffer_bytes += made.num_bytes
        return self._chunk_workspaces[shape]

    def _record_state(self, state: torch.Tensor, op: Op) -> None:
        slots = state.shape[0]
        self._num_states = min(self._num_states or slots, slots)
        self._record(op)
