"""The program of one step as a model family sees it: buffers and ops recorded once, run with one call a step.

``Graph`` is the contract of ``ftd.kernels``' graphs; families and the engine know nothing else of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.quant import ExpertBank, QuantMatrix
from ftd.kernels.reference_latent import HeadRows

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Buffer(Protocol):
    """Handle of an activation buffer [rows, width] f32; rows are the step's tokens or its logit rows."""

    @property
    def width(self) -> int:
        """Channels of one row."""
        ...


class Graph(Protocol):
    """Records ops in order; after ``finish`` runs them on any step of at most max_tokens tokens."""

    def buffer(self, width: int) -> Any:
        """Return a buffer with one row for each token of the step."""
        ...

    def logit_buffer(self, width: int) -> Any:
        """Return a buffer with one row for each logit row of the step."""
        ...

    def embedding(self, out: Any, weight: QuantMatrix, scale: float = 1.0) -> None:
        """out = weight[ids] * scale."""
        ...

    def rms_norm(self, out: Any, x: Any, weight: Floats, eps: float) -> None:
        """out = x / rms(x) * weight, row by row."""
        ...

    def head_rms_norm(self, x: Any, num_heads: int, weight: Floats, eps: float) -> None:
        """Normalise each head of ``x`` in place by ``weight`` [C]."""
        ...

    def add(self, out: Any, x: Any, scale: float = 1.0) -> None:
        """out += scale * x."""
        ...

    def linear(self, out: Any, x: Any, weight: QuantMatrix, bias: Floats | None = None) -> None:
        """out = x W^T + bias."""
        ...

    def linears(
        self, products: Sequence[tuple[Any, QuantMatrix, Floats | None]], x: Any, num_exact: int = 0
    ) -> None:
        """Several products of the same ``x``: each (out, weight, bias); the last ``num_exact`` in f32."""
        ...

    def linear_add(self, out: Any, x: Any, weight: QuantMatrix) -> None:
        """out += x W^T."""
        ...

    def swiglu(self, out: Any, gate: Any, up: Any) -> None:
        """out = silu(gate) * up."""
        ...

    def sigmoid_gate(self, out: Any, x: Any, gate: Any) -> None:
        """out = x * sigmoid(gate)."""
        ...

    def geglu(self, out: Any, gate: Any, up: Any) -> None:
        """out = gelu(gate) * up, with the tanh form of gelu."""
        ...

    def rope(
        self, x: Any, num_heads: int, head_dim: int, inv_freq: Floats, scale: float = 1.0, first: int = 0
    ) -> None:
        """Rotate each head of ``x`` in place by its token's position, from channel ``first`` on."""
        ...

    def head_linear(self, out: Any, x: Any, num_heads: int, weight: QuantMatrix, which: HeadRows) -> None:
        """out = each head of ``x`` times its own rows of ``weight``, and the head's tail."""
        ...

    def latent_norm(self, out: Any, x: Any, weight: Floats, eps: float, interleaved: bool = False) -> None:
        """out = the first channels of ``x`` normalised by ``weight`` [L], and the others."""
        ...

    def latent_store(self, x: Any, pages: NDArray[Any]) -> None:
        """Write each token's latent to its kv index."""
        ...

    def latent_attention(
        self,
        out: Any,
        q: Any,
        pages: NDArray[Any],
        num_heads: int,
        latent: int,
        scale: float,
        selection: Any = None,
    ) -> None:
        """Causal attention of each head over its sequence's latents, or over those that are selected."""
        ...

    def index_select(
        self, q: Any, weights: Any, pages: NDArray[Any], count: int, selection: Any = None
    ) -> Any:
        """Select each token's ``count`` best keys; return the handle that goes to ``latent_attention``."""
        ...

    def kv_store(self, k: Any, v: Any, k_pages: NDArray[Any], v_pages: NDArray[Any]) -> None:
        """Write each token's K and V to its kv index."""
        ...

    def attention(
        self,
        out: Any,
        q: Any,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        num_heads: int,
        scale: float,
        window: int = 0,
        sinks: Floats | None = None,
        causal: bool = True,
    ) -> None:
        """Attention of each token over its sequence's pages, to its own position or to all of them."""
        ...

    def position_embedding(self, x: Any, table: Floats) -> None:
        """x += table[positions]; ``table`` [S, D] has a row for each position that can be."""
        ...

    def layer_norm(self, out: Any, x: Any, weight: Floats, bias: Floats, eps: float) -> None:
        """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row."""
        ...

    def gelu(self, out: Any, x: Any) -> None:
        """out = gelu(x), with the error function."""
        ...

    def causal_conv(self, out: Any, x: Any, weight: Floats, state: NDArray[Any]) -> None:
        """out = silu(causal convolution of ``x`` by ``weight`` [C, K]); ``state`` is each slot's past."""
        ...

    def gated_delta(
        self,
        out: Any,
        qkv: Any,
        a: Any,
        b: Any,
        decay: Floats,
        bias: Floats,
        state: NDArray[Any],
        key_heads: int,
        tiled: bool = False,
    ) -> None:
        """out = the gated delta rule over ``qkv``; ``state`` [slots, Hv, Ck, Cv] is each slot's past."""
        ...

    def route_topk(
        self,
        logits: Any,
        num_chosen: int,
        scoring: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        bias: Floats | None = None,
        num_groups: int = 1,
        top_groups: int = 1,
        group_top: int = 2,
    ) -> Any:
        """Choose each token's experts by the router's logits; the handle goes to ``expert_ffn``."""
        ...

    def expert_ffn(
        self, out: Any, x: Any, routing: Any, bank: ExpertBank, activation: str = "silu", limit: float = 7.0
    ) -> None:
        """out = the weighted sum of what the chosen experts make of ``x``."""
        ...

    def routed(self, routing: Any) -> tuple[Ints, Floats]:
        """Return ids and weights [T, K] of the last step; valid until the next run."""
        ...

    def expert_uses(self, routing: Any) -> NDArray[np.int64]:
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        ...

    def select_logit_rows(self, out: Any, x: Any) -> None:
        """Copy the logit rows of ``x`` to the first rows of ``out``."""
        ...

    def finish(self) -> None:
        """Allocate and freeze."""
        ...

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
    ) -> None:
        """Compute one step; checks every bound, releases the GIL. Recurrent layers need ``state_index``."""
        ...

    def view(self, buffer: Any) -> Floats:
        """Return the rows of ``buffer`` that the last step wrote; valid until the next run."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of all buffers."""
        ...


class CardGraph(Graph, Protocol):
    """A graph whose buffers lie on a card, which the host need not wait for."""

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
        sampled: Any = None,
    ) -> None:
        """Launch one step. sampled [T] i32: ids that the card has and the host does not know yet."""
        ...

    def device_view(self, buffer: Any) -> Any:
        """Return the rows of ``buffer`` that the last step writes, as a tensor of the card."""
        ...
