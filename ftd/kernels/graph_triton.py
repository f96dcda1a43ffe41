"""CudaGraph: one step as a program of Triton kernels, recorded once; small steps are captured CUDA graphs.

    g = CudaGraph(None, max_tokens=…, …)      record: weights go to the device, nothing is computed
    x = g.buffer(D); g.embedding(x, weight); …
    g.finish()                                fuse, allocate, capture one graph for each bucket
    g.run(ids, positions, …); g.view(x)       as ``ReferenceGraph``, which is the definition

A step in which every sequence has one token, and one of a short prompt, replays the graph of the smallest
bucket that holds it; every other step launches the kernels one by one. Both run the same kernels.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels import cuda_program as ops
from ftd.kernels.attention_triton import Spread, spread
from ftd.kernels.cuda_attention import Attention, KvStore
from ftd.kernels.cuda_encoder import EncoderOps
from ftd.kernels.cuda_experts import CachedExperts, DeviceRouting, Experts, Route, look_ahead
from ftd.kernels.cuda_fusion import fuse
from ftd.kernels.cuda_latent import LatentOps, RotateTail
from ftd.kernels.cuda_memory import DeviceMemory
from ftd.kernels.cuda_program import DeviceBuffer, Op
from ftd.kernels.cuda_runner import Runner
from ftd.kernels.cuda_states import StateOps
from ftd.kernels.cuda_step import StepMemory
from ftd.kernels.device_weights import DeviceWeights
from ftd.kernels.expert_ffn_ref import check_bank
from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.gated_chunk_triton import ChunkWorkspace
from ftd.kernels.latent_attention_triton import LatentWorkspace
from ftd.kernels.quant import ExpertBank, QuantMatrix
from ftd.kernels.route_topk_ref import check as check_router
from ftd.kernels.shapes import expect
from ftd.kernels.step import Limits, Step, check_step

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

# Formats whose scales span rows: several of them cannot be stacked into one product.
_UNSTACKABLE = frozenset({"nvfp4", "fp8_b128"})


class CudaGraph(LatentOps, EncoderOps, StateOps):
    """Records ops and runs them on ``device``; ``cpu`` runs the same kernels in Triton's interpreter."""

    def __init__(
        self,
        pool: object = None,
        *,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        page_size: int,
        max_pages_per_sequence: int,
        precision: Literal["fast", "f32"] = "fast",
        device: str = "cuda",
        experts: ExpertSlots | None = None,
        weights: DeviceWeights | None = None,
    ) -> None:
        self._experts = experts
        self._limits = Limits(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            page_size=page_size,
            max_pages_per_sequence=max_pages_per_sequence,
        )
        if precision not in ("fast", "f32"):
            raise ValueError(f"precision must be fast or f32, got {precision!r}")
        self._precision = precision
        self._memory = DeviceMemory(self._limits, precision, device, weights)
        self._runner: Runner | None = None
        self._program: list[Op] = []
        self._groups: dict[DeviceBuffer, tuple[DeviceBuffer, ...]] = {}
        self._buffers: list[DeviceBuffer] = []
        self._spreads: set[Spread] = set()
        self._chunk_workspaces: dict[tuple[int, ...], ChunkWorkspace] = {}
        self._latent_workspaces: dict[tuple[int, int], LatentWorkspace] = {}
        self._index_scores: torch.Tensor | None = None
        self._last_positions: torch.Tensor | None = None
        self._wanted = (0, 0)
        self._num_ids = 2**31
        self._num_pages = 2**31 // page_size
        self._num_states = 0

    def buffer(self, width: int) -> DeviceBuffer:
        """Return a new buffer with one row for each token of a step."""
        return self._new(DeviceBuffer(width, "tokens"))

    def logit_buffer(self, width: int) -> DeviceBuffer:
        """Return a new buffer with one row for each logit row of a step."""
        return self._new(DeviceBuffer(width, "logits"))

    def embedding(self, out: DeviceBuffer, weight: QuantMatrix, scale: float = 1.0) -> None:
        """Record out = scale * weight[ids]."""
        self._num_ids = min(self._num_ids, weight.shape[0])
        self._record(ops.Embed(out, self._memory.matrix([weight]), scale))

    def rms_norm(self, out: DeviceBuffer, x: DeviceBuffer, weight: Floats, eps: float) -> None:
        """Record out = rms_norm(x, weight, eps); ``out`` may be ``x``."""
        expect("weight", weight, "float32", (x.width,))
        self._record(ops.RmsNorm(out, x, self._memory.vector(weight), eps))

    def head_rms_norm(self, x: DeviceBuffer, num_heads: int, weight: Floats, eps: float) -> None:
        """Record x = rms_norm of each head of ``x`` [rows, num_heads * C]; weight [C]."""
        expect("weight", weight, "float32", (x.width // num_heads,))
        self._record(ops.RmsNorm(x, x, self._memory.vector(weight), eps))

    def add(self, out: DeviceBuffer, x: DeviceBuffer, scale: float = 1.0) -> None:
        """Record out += scale * x."""
        self._record(ops.Add(out, x, scale))

    def linear(
        self, out: DeviceBuffer, x: DeviceBuffer, weight: QuantMatrix, bias: Floats | None = None
    ) -> None:
        """Record out = x weight^T + bias."""
        self.linears([(out, weight, bias)], x)

    def linears(
        self,
        products: Sequence[tuple[DeviceBuffer, QuantMatrix, Floats | None]],
        x: DeviceBuffer,
        num_exact: int = 0,
    ) -> None:
        """Record several products of the same ``x``, as one where their weights can be stacked.

        ``num_exact`` means nothing here: activations are bf16 or f32, never 8-bit.
        """
        for out, weight, bias in products:
            _expect_product(out, x, weight)
            if bias is not None:
                expect("bias", bias, "float32", (out.width,))
        outs = tuple(out for out, _, _ in products)
        if not self._can_stack(outs, [weight for _, weight, _ in products]):
            for product in products:
                self._product([product], x)
            return
        for out in outs:
            self._groups[out] = outs
        self._product(products, x)

    def linear_add(self, out: DeviceBuffer, x: DeviceBuffer, weight: QuantMatrix) -> None:
        """Record out += x weight^T."""
        _expect_product(out, x, weight)
        self._record(ops.Product([out], x, self._memory.matrix([weight]), None, self._precision, add=True))

    def swiglu(self, out: DeviceBuffer, gate: DeviceBuffer, up: DeviceBuffer) -> None:
        """Record out = silu(gate) * up; ``out`` may be ``gate``."""
        self._record(ops.Gate(out, gate, up, "silu"))

    def geglu(self, out: DeviceBuffer, gate: DeviceBuffer, up: DeviceBuffer) -> None:
        """Record out = gelu(gate) * up; ``out`` may be ``gate``."""
        self._record(ops.Gate(out, gate, up, "gelu"))

    def rope(
        self,
        x: DeviceBuffer,
        num_heads: int,
        head_dim: int,
        inv_freq: Floats,
        scale: float = 1.0,
        first: int = 0,
    ) -> None:
        """Record x = rope(x) with the step's positions; channels before ``first`` of a head stay."""
        if x.width != num_heads * head_dim:
            raise ValueError(f"x must be {num_heads} heads of {head_dim}, got width {x.width}")
        frequencies = self._memory.vector(inv_freq)
        if first:
            self._record(RotateTail(x, num_heads, frequencies, scale, first))
        else:
            self._record(ops.Rope(x, num_heads, frequencies, scale))

    def kv_store(
        self, k: DeviceBuffer, v: DeviceBuffer, k_pages: torch.Tensor, v_pages: torch.Tensor
    ) -> None:
        """Record the step's keys and values going to their pages."""
        self._expect_pages(k_pages, v_pages)
        self._record(KvStore(k, v, k_pages, v_pages))

    def attention(
        self,
        out: DeviceBuffer,
        q: DeviceBuffer,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        num_heads: int,
        scale: float,
        window: int = 0,
        sinks: Floats | None = None,
        causal: bool = True,
    ) -> None:
        """Record out = attention(q, pages) with the step's sequences."""
        self._expect_pages(k_pages, v_pages)
        if num_heads % k_pages.shape[1]:
            raise ValueError(
                f"query heads must be a multiple of key-value heads, got {num_heads} and {k_pages.shape[1]}"
            )
        self._spreads.add(spread(k_pages, num_heads, window))
        weight = None if sinks is None else self._memory.vector(sinks)
        workspace = self._memory.attention_workspace(num_heads, k_pages)
        op = Attention(out, q, k_pages, v_pages, num_heads, scale, window, weight, workspace)
        self._record(op if causal else self._whole(op))

    def route_topk(
        self,
        logits: DeviceBuffer,
        num_chosen: int,
        scoring: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        bias: Floats | None = None,
        num_groups: int = 1,
        top_groups: int = 1,
        group_top: int = 2,
    ) -> DeviceRouting:
        """Record the choice of experts by a router's logits; return the handle that expert_ffn takes."""
        example = np.empty((0, logits.width), np.float32)
        check_router(example, num_chosen, scoring, bias, num_groups, top_groups, group_top)
        shape, device = (self._limits.max_tokens, num_chosen), self._memory.device
        routing = DeviceRouting(
            logits.width,
            num_chosen,
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.zeros(shape, dtype=torch.float32, device=device),
            torch.zeros(logits.width + 1, dtype=torch.int64, device=device),
        )
        self._memory.buffer_bytes += 8 * routing.ids.numel() + 8 * routing.uses.numel()
        weight = None if bias is None else self._memory.vector(bias)
        options = (scoring, renormalise, scale, weight, num_groups, top_groups, group_top)
        self._record(Route(logits, routing, options))
        return routing

    def expert_ffn(
        self,
        out: DeviceBuffer,
        x: DeviceBuffer,
        routing: DeviceRouting,
        bank: ExpertBank,
        activation: str = "silu",
        limit: float = 7.0,
    ) -> None:
        """Record out = the weighted sum of what the chosen experts make of x; see expert_ffn_ref."""
        width, _ = check_bank(bank, activation)
        if (x.width, out.width, routing.num_experts) != (width, width, bank.num_experts):
            raise ValueError(f"experts of layer {bank.layer} do not fit their buffers or router")
        options = (activation, limit, self._precision)
        if self._experts is not None and bank.records.nbytes:
            row = self._experts.add(bank, activation, limit)
            slots = self._experts.by_slot(bank.layer, self._experts.matrices(bank))
            self._record(CachedExperts(out, x, routing, slots, *options, pool=self._experts, row=row))
            return
        self._record(Experts(out, x, routing, self._memory.bank(bank), *options))

    def routed(self, routing: DeviceRouting) -> tuple[Ints, Floats]:
        """Return ids and weights [T, K] of the last step."""
        num = self._wanted[0]
        return routing.ids[:num].cpu().numpy(), routing.weights[:num].cpu().numpy()

    def expert_uses(self, routing: DeviceRouting) -> NDArray[np.int64]:
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        uses: NDArray[np.int64] = routing.uses.cpu().numpy()
        return uses

    def select_logit_rows(self, out: DeviceBuffer, x: DeviceBuffer) -> None:
        """Record out = x[logit_rows]; ``out`` is a logit buffer."""
        self._record(ops.SelectRows(out, x))

    def finish(self) -> None:
        """Fuse the program, give buffers their memory and capture graphs of small steps; recording ends."""
        self._refuse_finished()
        program = self._place()
        self._memory.forget()
        if self._experts is not None:
            self._experts.start()
        self._runner = Runner(program, self._limits, self._spreads, self._memory.device)

    def measure(self) -> int:
        """Return the bytes that ``finish`` would have taken; on ``meta`` they are only counted."""
        self._refuse_finished()
        self._place()
        return self.num_bytes + StepMemory.count(self._limits, self._spreads)

    def run(
        self,
        ids: Ints,
        positions: Ints,
        kv_index: Ints,
        q_start: Ints,
        kv_len: Ints,
        page_table: Ints,
        logit_rows: Ints,
        state_index: Ints | None = None,
        sampled: torch.Tensor | None = None,
    ) -> None:
        """Run the program on one step; the arguments are those of ``ReferenceGraph.run``.

        Waits for no results, only until the step before the last one has begun. sampled [T] i32: on the
        device, stands in for ``ids`` of a step that is launched ahead.
        """
        if self._runner is None:
            raise ValueError("finish() must come before run()")
        step = Step(ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index)
        check_step(step, self._limits, self._num_ids, self._num_pages, self._num_states)
        self._wanted = (len(ids), len(logit_rows))
        self._runner.run(step, sampled)

    def device_view(self, buffer: DeviceBuffer) -> torch.Tensor:
        """Return the rows of ``buffer`` of the last step where they are; they change with the next one."""
        assert buffer.tensor is not None, "finish() must come before device_view()"
        return buffer.tensor[: self._wanted[0 if buffer.kind == "tokens" else 1]]

    def view(self, buffer: DeviceBuffer) -> Floats:
        """Return the rows of ``buffer`` of the last step: f32 [rows, width]. Waits for the device.

        Raises ValueError before ``finish`` and for a buffer that vanished into a fused op.
        """
        if buffer.tensor is None:
            raise ValueError("finish() must come before view(), and fused buffers have no values")
        rows = self._wanted[0 if buffer.kind == "tokens" else 1]
        values: Floats = buffer.tensor[:rows].float().cpu().numpy()
        return values

    def time_by_kind(self, num_rows: int) -> dict[str, tuple[int, float]]:
        """Return for each kind of op how many a decode step of ``num_rows`` has, and their microseconds."""
        assert self._runner is not None, "finish() must come before time_by_kind()"
        return self._runner.time_by_kind(num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and step arrays (of workspaces alone until finished)."""
        return self._memory.buffer_bytes + (0 if self._runner is None else self._runner.num_bytes)

    def _place(self) -> list[Op]:
        """Fuse the program and give what it touches memory; return it."""
        program = fuse(self._program)
        if self._experts is not None and self._experts.looks_ahead:
            look_ahead(program)
        self._memory.allocate(lambda: self._memory.place_buffers(program, self._buffers, self._groups))
        self._memory.allocate(lambda: self._memory.place_expert_workspace(program))
        return program

    def _can_stack(self, outs: tuple[DeviceBuffer, ...], weights: list[QuantMatrix]) -> bool:
        if len(outs) == 1:
            return True
        if len({weight.format for weight in weights}) > 1 or weights[0].format in _UNSTACKABLE:
            return False
        return len(set(outs)) == len(outs) and all(self._groups.get(out, outs) == outs for out in outs)

    def _product(
        self, products: Sequence[tuple[DeviceBuffer, QuantMatrix, Floats | None]], x: DeviceBuffer
    ) -> None:
        outs = [out for out, _, _ in products]
        biases = [bias for _, _, bias in products]
        bias = None
        if any(each is not None for each in biases):
            parts = [
                np.zeros(out.width, np.float32) if each is None else each
                for out, each in zip(outs, biases, strict=True)
            ]
            bias = torch.from_numpy(np.concatenate(parts)).to(self._memory.device)
        matrix = self._memory.matrix([weight for _, weight, _ in products])
        self._record(ops.Product(outs, x, matrix, bias, self._precision))

    def _expect_pages(self, k_pages: torch.Tensor, v_pages: torch.Tensor) -> None:
        pages, groups, channels, page_size = k_pages.shape
        expect("k_pages", k_pages, "float16 float32", (pages, groups, channels, self._limits.page_size))
        expect("v_pages", v_pages, "float16 float32", (pages, groups, page_size, channels))
        self._num_pages = min(self._num_pages, pages)

    def _new(self, buffer: DeviceBuffer) -> DeviceBuffer:
        self._refuse_finished()
        if buffer.width < 1:
            raise ValueError(f"width must be at least 1, got {buffer.width}")
        self._buffers.append(buffer)
        return buffer

    def _record(self, op: Op) -> None:
        self._refuse_finished()
        self._program.append(op)

    def _refuse_finished(self) -> None:
        if self._runner is not None:
            raise ValueError("nothing can be recorded after finish()")


def _expect_product(out: DeviceBuffer, x: DeviceBuffer, weight: QuantMatrix) -> None:
    """Raise ValueError unless ``weight`` takes ``x`` to ``out``, which is another buffer."""
    if weight.shape != (out.width, x.width):
        raise ValueError(f"weight must be {[out.width, x.width]}, got {list(weight.shape)}")
    if out is x:
        raise ValueError("the product of a buffer cannot go to the buffer itself")
