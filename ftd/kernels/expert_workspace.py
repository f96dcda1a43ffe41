"""Workspace: the device memory that ``expert_ffn`` on a GPU needs between its kernels.

One serves all layers of a model, as long as they run one after the other on one stream.
"""

from dataclasses import dataclass

import torch

from ftd.kernels.expert_groups_triton import Groups

# Up to so many tokens nothing is sorted, and each expert's tokens fit one tile (tl.dot needs 16 columns).
DECODE_TOKENS = 16
# Spans of D that decode's programs share out: 16 rows each up to D 65536.
_ARRIVALS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Memory for steps of some size; whoever made it owns it. ``zeros`` is zero between calls.

    inner    u8    h [T*K, F]       bf16, f32 in precision "f32"
    parts    u8    parts [T*K, D]   f32 for up to 16 tokens and in precision "f32", else bf16
    indices  i32   order, rank [T*K], starts [E + 1], ends [E]
    zeros    i32   counts [E], arrivals
    """

    inner: torch.Tensor
    parts: torch.Tensor
    indices: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def make(
        cls,
        max_tokens: int,
        num_chosen: int,
        num_experts: int,
        width: int,
        inner_width: int,
        precision: str,
        device: torch.device | str,
    ) -> "Workspace":
        """Allocate for banks of up to these sizes: K, E, D, F."""
        pairs = max_tokens * num_chosen
        item = 4 if precision == "f32" else 2
        few = min(pairs, DECODE_TOKENS * num_chosen)

        def memory(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(count, dtype=dtype, device=device)

        return cls(
            memory(pairs * inner_width * item, torch.uint8),
            memory(max(pairs * item, few * 4) * width, torch.uint8),
            memory(2 * pairs + 2 * num_experts + 1, torch.int32),
            torch.zeros(num_experts + _ARRIVALS, dtype=torch.int32, device=device),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it."""
        return sum(each.nbytes for each in (self.inner, self.parts, self.indices, self.zeros))

    def expect(self, num_pairs: int, num_experts: int, width: int, inner_width: int, is_exact: bool) -> None:
        """Raise ValueError unless a step of ``num_pairs`` fits."""
        item = 4 if is_exact else 2
        fits = (
            num_pairs * inner_width * item <= self.inner.nbytes
            and num_pairs * width * item <= self.parts.nbytes
            and 2 * num_pairs + 2 * num_experts + 1 <= self.indices.numel()
            and num_experts + _ARRIVALS <= self.zeros.numel()
        )
        if not fits:
            raise ValueError(
                f"the workspace of {self.num_bytes} bytes is too small for {num_pairs} pairs of "
                f"{num_experts} experts of {width} by {inner_width}"
            )

    def rows(self, memory: torch.Tensor, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the beginning of ``inner`` or ``parts`` as [num_rows, width]."""
        return memory[: num_rows * width * dtype.itemsize].view(dtype).view(num_rows, width)

    def groups(self, num_pairs: int, num_experts: int) -> Groups:
        """Return where pairs are grouped by expert."""
        sizes = [num_pairs, num_pairs, num_experts + 1, num_experts]
        order, rank, starts, ends = torch.split(self.indices[: sum(sizes)], sizes)
        return Groups(order, rank, starts, ends, self.zeros[:num_experts])

    def arrivals(self, num_experts: int) -> torch.Tensor:
        """Return the counters of decode's programs, one for each span of D."""
        return self.zeros[num_experts:]
