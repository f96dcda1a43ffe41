"""One loaded model, ready to compute steps: weights, KV pages and the recorded graph. Knows no requests.

The graph is recorded once for any step of up to ``max_tokens`` tokens of ``max_sequences`` sequences.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ftd.engine.graphs import CardGraph, Floats, Graph, Ints
from ftd.engine.kv_pool import KvPool
from ftd.engine.model_config import ModelConfig
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks
from ftd.engine.state_pool import StatePool
from ftd.engine.weights import Weights
from ftd.kernels import cpu

TILE_BYTES = 512 * 1024  # a little more than AMX_SCRATCH_BYTES of kernels/src/matmul.h


class Model:
    """Owns the graph, the KV pages and the recurrent states; ``run`` computes one step, the views hold its
    results until the next.

    make_graph, make_pages: the graph class of the device, what allocates KV pages there. pool: the worker
    threads of the processor.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        make_graph: Callable[..., Graph],
        pool: Any,
        *,
        num_pages: int,
        page_size: int,
        max_pages_per_sequence: int,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        precision: str,
        make_pages: Callable[[tuple[int, ...], str], Any] = np.zeros,
        num_state_slots: int = 1,
    ) -> None:
        record = families.get(config.architecture)
        self.config = config
        self.kv_pool = KvPool(config, num_pages, page_size, precision, make_pages)
        recurrent = config.recurrent
        self.state_pool = None if recurrent is None else StatePool(recurrent, num_state_slots, make_pages)
        self.graph = make_graph(
            pool,
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            page_size=page_size,
            max_pages_per_sequence=max_pages_per_sequence,
            precision=precision,
        )
        blocks = Blocks(config, self.graph, weights, self.kv_pool, self.state_pool)
        self._outputs = record(blocks)
        self._routings = blocks.routings
        self.graph.finish()

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
        """Compute one step; the shapes are those of ``Graph.run``, ``sampled`` that of ``CardGraph.run``."""
        arrays = ids, positions, kv_index, q_start, kv_len, page_table, logit_rows
        if sampled is not None:
            cast(CardGraph, self.graph).run(*arrays, sampled=sampled)
            return
        if self.state_pool is None:
            self.graph.run(*arrays)
        else:
            self.graph.run(*arrays, state_index)

    @property
    def logits(self) -> Floats:
        """Logits [num_logits, V] of the last step, a row for each of its logit rows."""
        assert self._outputs.logits is not None, "an encoder has no logits"
        return self.graph.view(self._outputs.logits)

    @property
    def device_logits(self) -> Any:
        """Logits of the last step where a card has them."""
        return cast(CardGraph, self.graph).device_view(self._outputs.logits)

    @property
    def hidden(self) -> Floats:
        """Hidden states [T, D] of the last step after the last norm."""
        return self.graph.view(self._outputs.hidden)

    def routed(self) -> dict[int, Ints]:
        """Return the expert ids [T, K] of the last step by layer, best first; valid until the next run."""
        return {layer: self.graph.routed(routing)[0] for layer, routing in self._routings.items()}

    def expert_uses(self) -> dict[int, NDArray[np.int64]]:
        """Return by layer [E + 1]: tokens that each expert served; last, how often one was read."""
        return {layer: self.graph.expert_uses(routing) for layer, routing in self._routings.items()}

    @property
    def sequence_bytes(self) -> int:
        """Memory of all that sequences keep: KV pages and recurrent states."""
        return self.kv_pool.num_bytes + (self.state_pool.num_bytes if self.state_pool else 0)

    @property
    def workspace_bytes(self) -> int:
        """Memory of the graph's buffers."""
        return self.graph.num_bytes


def workspace_needs(config: ModelConfig, max_sequences: int) -> tuple[int, int]:
    """Return the bytes of the graph's buffers: fixed (the logits), and for each token of the largest step.

    The buffers are those of ``Blocks``, with as much again for activations that kernels keep quantised;
    fixed are also what products of AMX tiles keep for each thread.
    """
    fixed = 4 * max_sequences * (config.vocab_size + config.hidden_size) + TILE_BYTES * len(
        cpu.usable_cores()
    )
    heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    widths = 3 * config.hidden_size + heads + 2 * config.intermediate_size
    if config.experts is not None:
        experts = config.experts
        widths += experts.num_experts + experts.num_chosen * (config.hidden_size + 3 * experts.inner_size)
    if config.latent is not None:
        latent = config.latent
        head = latent.query_size + latent.row_size + latent.kv_rank + latent.value_dim
        widths += config.num_heads * head + 2 * latent.row_size + latent.q_rank
        if latent.index is not None:  # a bit for each key, and queries
            widths += config.max_context_tokens // 32 + latent.index.num_heads * (latent.index.head_dim + 1)
    if config.recurrent is not None:
        recurrent = config.recurrent
        widths += 2 * (recurrent.conv_size + recurrent.value_size + recurrent.value_heads)
        widths += config.num_heads * config.head_dim
    return fixed, 8 * widths
