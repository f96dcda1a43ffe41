"""What an engine takes on a card beside weights and pages, learnt before anything is allocated.

The workspace is counted by recording the model on a device that has shapes and no memory, so that it is what
the graph will take, whatever kernels need. What the driver, kernels and captured graphs take was measured:
of 8 GB allowed 30b-a3b in q4_0 left 0.4 % (H200).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ftd.engine.kv_pool import KvPool
from ftd.engine.model_config import ModelConfig
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks
from ftd.engine.state_pool import StatePool
from ftd.engine.weights import Weights

# Measured on an H200 with CUDA 13 and torch 2.11: what a process takes before it does anything …
CONTEXT_BYTES = 528 << 20
# … code of torch's and our kernels, and what they keep …
KERNEL_BYTES = 112 << 20
# … each captured graph …
GRAPH_BYTES = 16 << 20
# … what the copies, mailbox and placements of experts beyond a card take …
POOL_BYTES = 48 << 20
# … and what the allocator of torch rounds up.
ROUNDING_BYTES = 32 << 20
# Rows of the captured graphs of decode, and how many are of prompts; as in ``ftd.kernels.cuda_runner``
GRAPH_ROWS, NUM_PROMPT_GRAPHS = (1, 2, 4, 8, 16), 4
# Sizes are counted for so many tokens at a time, so that few recordings answer all
_STEP_TOKENS, _WINDOW_TOKENS = 64, 4096
# Tokens of the largest step, sequences, tokens of a window -> bytes
Workspace = Callable[[int, int, int], int]


def workspace(
    config: ModelConfig, weights: Weights, precision: str, page_size: int, make_graph: Any, make_pages: Any
) -> Workspace:
    """Return what says how large the workspace of a model on a card is.

    make_graph, make_pages: of the device without memory. Recording takes milliseconds and is remembered.
    """

    @lru_cache
    def record(max_tokens: int, max_sequences: int, context_tokens: int) -> int:
        graph = make_graph(
            None,
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_sequences,
            page_size=page_size,
            max_pages_per_sequence=-(-context_tokens // page_size),
            precision=precision,
        )
        recurrent = config.recurrent
        states = None if recurrent is None else StatePool(recurrent, 1, make_pages)
        pages = KvPool(config, 1, page_size, precision, make_pages)
        families.get(config.architecture)(Blocks(config, graph, weights, pages, states))
        num_bytes: int = graph.measure()
        return num_bytes

    def count(max_tokens: int, max_sequences: int, context_tokens: int) -> int:
        tokens = -(-max_tokens // _STEP_TOKENS) * _STEP_TOKENS
        window = -(-context_tokens // _WINDOW_TOKENS) * _WINDOW_TOKENS
        # An encoder has no positions beyond its window
        window = max(context_tokens, min(window, config.max_context_tokens))
        return record(tokens, max_sequences, window)

    return count


def overhead(context_bytes: int, max_sequences: int, has_pool: bool) -> int:
    """Return what a process takes beside what it allocates. has_pool: not all experts are on the card."""
    largest = min(max_sequences, GRAPH_ROWS[-1])
    num_graphs = sum(rows < largest for rows in GRAPH_ROWS) + 1 + NUM_PROMPT_GRAPHS
    pool_bytes = POOL_BYTES if has_pool else 0
    return context_bytes + KERNEL_BYTES + num_graphs * GRAPH_BYTES + pool_bytes + ROUNDING_BYTES
