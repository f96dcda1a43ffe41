"""attention on a GPU over paged keys and values: the two kernels that together are the op of attention_ref.

A step's sequences of one token go to ``attention_decode``, those of several to ``attention_prefill``.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.attention_decode_triton import DecodeWorkspace, attention_decode, decode_workspace
from ftd.kernels.attention_prefill_triton import attention_prefill, num_parts, spread
from ftd.kernels.attention_spread import Spread, prefill_blocks

__all__ = [
    "DecodeWorkspace",
    "Spread",
    "attention",
    "attention_decode",
    "attention_prefill",
    "decode_workspace",
    "num_parts",
    "prefill_blocks",
    "spread",
]


def attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_table: torch.Tensor,
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: torch.Tensor,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from each row, all sequences through prefill's kernel; see attention_ref.

    q                [T, H, C] f32 or bf16
    q_start, kv_len  [B + 1], [B] i32   on the host

    Makes its list of blocks itself, so it is not for graph capture.
    """
    tokens, heads, channels = q.shape
    blocks = prefill_blocks(q_start, kv_len, spread(k_pages, heads, window))
    shared = bool((blocks[:, 3] > 1).any())
    return attention_prefill(
        q.reshape(tokens, heads * channels),
        k_pages,
        v_pages,
        page_table,
        torch.from_numpy(q_start).to(q.device),
        positions,
        torch.from_numpy(blocks).to(q.device),
        heads,
        scale,
        window,
        sinks,
        parts=torch.empty(num_parts(k_pages, heads), device=q.device) if shared else None,
    ).reshape(q.shape)
