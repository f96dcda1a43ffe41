"""Fill of slots on a GPU: whole expert records, gathered from pinned host memory by address.

No copy engine and no host are involved, so the gather is a node of a captured graph, and what it copies is
data: the rows (flat id, slot) that ``residency_triton`` wrote.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.shapes import expect

# Programs, and words of each that are under way at once. Both reach 51 GB/s on an H200, whose copy engine has
# 55. Every other read of the card waits behind a fill: a look at the mailbox takes 12.7 us beside a deep one,
# 5.5 beside a shallow one, 1.3 alone. With half as many words, 2.3 us, but 38 GB/s beside 15 cores that read:
# where steps wait for such fills, decode of 30b-a3b in bf16 takes 15 % longer.
Depth = tuple[int, int]
DEEP: Depth = (32, 2048)
SHALLOW: Depth = (16, 2048)
WORD_BYTES = 8


@triton.jit
def _fill(
    # pointers
    rows, count, bases, slots,
    # sizes
    E, record_words,
    # strides
    slot_words,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy record ``flat`` to ``slot`` for each of count rows; programs share the blocks of all records."""
    per_record = tl.cdiv(record_words, BLOCK)
    num_blocks = tl.load(count) * per_record
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        row = block // per_record
        flat, slot = tl.load(rows + 2 * row), tl.load(rows + 2 * row + 1)
        source = (tl.load(bases + flat // E) + (flat % E).to(tl.int64) * (record_words * 8)).to(
            tl.pointer_type(tl.int64)
        )
        source = tl.multiple_of(source, 16)
        word = block % per_record * BLOCK + tl.arange(0, BLOCK)
        words = tl.load(source + word, mask=word < record_words)
        tl.store(slots + slot.to(tl.int64) * slot_words + word, words, mask=word < record_words)


def fill(
    rows: torch.Tensor,
    count: torch.Tensor,
    bases: torch.Tensor,
    slots: torch.Tensor,
    num_experts: int,
    record_bytes: int,
    depth: Depth = DEEP,
) -> None:
    """Copy expert records from host memory into slots. Safe under capture.

    rows    [N, 2] i32   flat id and slot of each record to copy, of which ``count`` [1] i32 are valid
    bases   [L] i64      address of each layer's first record, in host memory that is pinned
    slots   [R, S] u8    S >= record_bytes; both are multiples of 16
    depth                DEEP where a step waits for it, SHALLOW where others should not wait
    E = num_experts of a layer; flat id = layer * E + expert.
    """
    expect("rows", rows, "int32", ("N", 2))
    expect("bases", bases, "int64", ("L",))
    expect("slots", slots, "uint8", ("R", "S"))
    if record_bytes % 16 or slots.stride(0) % 16 or slots.shape[1] < record_bytes:
        raise ValueError(
            f"records of {record_bytes} bytes do not fit slots of {slots.shape[1]} at {slots.stride(0)}"
        )
    programs, words = depth
    _fill[(programs,)](
        rows,
        count,
        bases,
        slots.view(torch.int64),
        num_experts,
        record_bytes // WORD_BYTES,
        slots.stride(0) // WORD_BYTES,
        BLOCK=words,
        num_warps=8,
    )
