"""attention on a GPU over paged keys and values: the two kernels that together are the op of attention_ref.

A step's sequences of one token go to ``attention_decode``, those of several to ``attention_prefill``.
"""

import torch

from ftd.kernels.attention_decode_triton import DecodeWorkspace, attention_decode, decode_workspace
from ftd.kernels.attention_prefill_triton import attention_prefill, num_parts, spread
from ftd.kernels.attention_spread import Spread, prefill_blocks
from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect

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
    q_start: torch.Tensor,
    kv_len: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    pool: object = None,
    causal: bool = True,
) -> torch.Tensor:
    """Attend from each row, all sequences through prefill's kernel; see attention_ref. q is f32 or bf16.

    Waits for the lengths to make its list of blocks, so it is not for graph capture.
    """
    expect("q", q, FLOATS, ("T", "H", "C"))
    check_pages(k_pages, v_pages, "G", q.shape[2])
    if window and not causal:
        raise ValueError(f"attention in both directions has no window, got {window}")
    if not causal:  # as if each row were its sequence's last
        positions = torch.repeat_interleave(kv_len - 1, q_start.diff())
    heads = q.shape[1]
    blocks = prefill_blocks(q_start.cpu().numpy(), kv_len.cpu().numpy(), spread(k_pages, heads, window))
    shared = bool((blocks[:, 3] > 1).any())
    out = q.new_empty(q.shape)
    attention_prefill(
        q.flatten(1),
        k_pages,
        v_pages,
        page_table,
        q_start,
        positions,
        torch.from_numpy(blocks).to(q.device),
        heads,
        scale,
        window,
        sinks,
        out=out.flatten(1),
        parts=torch.empty(num_parts(k_pages, heads), device=q.device) if shared else None,
    )
    return out
