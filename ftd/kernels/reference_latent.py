"""LatentOps: how ReferenceGraph records multi-head latent attention."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.kernels import head_linear_ref, latent_attention_ref, latent_norm_ref
from ftd.kernels.index_select_ref import index_select
from ftd.kernels.latent_store_ref import check_pages, latent_store
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_recorder import Buffer, Floats, Recorder
from ftd.kernels.shapes import expect_range
from ftd.kernels.step import Step


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Which rows of each head a product takes, and how; the arguments of ``head_linear`` by these names."""

    tail: int = 0
    interleaved: bool = False
    first: int = 0
    rows: int = 0
    transposed: bool = False


def head_shape(x: Buffer, num_heads: int, weight: QuantMatrix, which: HeadRows) -> tuple[int, int, int]:
    """Return rows in use and the widths of a head of ``x`` and of the result; ValueError as head_linear."""
    expect_range("num_heads", num_heads, num_heads, 1, x.width)
    if x.width % num_heads:
        raise ValueError(f"width {x.width} is no multiple of {num_heads} heads")
    example = np.empty((0, num_heads, x.width // num_heads), np.float32)
    used, wide, _ = head_linear_ref.check(
        example, weight, which.tail, which.interleaved, which.first, which.rows, which.transposed
    )
    return used, x.width // num_heads, wide + which.tail


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Handle of the keys that an indexer chose; the graph that made it owns the memory."""

    num_heads: int


class LatentOps(Recorder):
    """The ops of attention over latents: pages hold one row a token, [P, page_size, C]."""

    def __init__(self, pool: object = None, **limits: Any) -> None:
        super().__init__(pool, **limits)
        self._selected: dict[Selection, NDArray[np.uint64]] = {}

    def head_linear(
        self, out: Buffer, x: Buffer, num_heads: int, weight: QuantMatrix, which: HeadRows
    ) -> None:
        """Record out = each head of ``x`` times its own rows of ``weight``, and the head's tail."""
        self._expect(x, x.width, "tokens")
        _, width, wide = head_shape(x, num_heads, weight, which)
        self._expect(out, num_heads * wide, "tokens")
        if out is x:
            raise ValueError("the product of a buffer cannot go to the buffer itself")

        def run(step: Step) -> None:
            heads = self.view(x).reshape(-1, num_heads, width)
            result = head_linear_ref.head_linear(heads, weight, **asdict(which))
            self._write(out, result.reshape(-1, out.width))

        self._record(run)

    def latent_norm(
        self, out: Buffer, x: Buffer, weight: Floats, eps: float, interleaved: bool = False
    ) -> None:
        """Record out = the first channels of ``x`` normalised, and the others."""
        self._expect(x, x.width, "tokens")
        self._expect(out, x.width, "tokens")
        if out is x:
            raise ValueError("the norm of a latent cannot go to the buffer itself")
        latent_norm_ref.check(np.empty((0, x.width), np.float32), weight, eps, interleaved)
        self._record(
            lambda step: self._write(out, latent_norm_ref.latent_norm(self.view(x), weight, eps, interleaved))
        )

    def latent_store(self, x: Buffer, pages: NDArray[np.floating]) -> None:
        """Record the step's latents going to their pages; the graph keeps the array alive."""
        self._expect_latents(pages)
        self._expect(x, pages.shape[2], "tokens")
        self._record(lambda step: latent_store(self.view(x), pages, step.kv_index))

    def latent_attention(
        self,
        out: Buffer,
        q: Buffer,
        pages: NDArray[np.floating],
        num_heads: int,
        latent: int,
        scale: float,
        selection: Selection | None = None,
    ) -> None:
        """Record out = latent_attention(q, pages) with the step's sequences, over what is selected."""
        self._expect_latents(pages)
        channels = pages.shape[2]
        expect_range("latent", latent, latent, 1, channels)
        self._expect(q, num_heads * channels, "tokens")
        self._expect(out, num_heads * latent, "tokens")

        def run(step: Step) -> None:
            heads = self.view(q).reshape(-1, num_heads, channels)
            places = step.page_table, step.q_start, step.kv_len, step.positions
            chosen = None if selection is None else self._selected[selection]
            result = latent_attention_ref.latent_attention(heads, pages, *places, latent, scale, chosen)
            self._write(out, result.reshape(-1, out.width))

        self._record(run)

    def index_select(
        self,
        q: Buffer,
        weights: Buffer,
        pages: NDArray[np.floating],
        count: int,
        selection: Selection | None = None,
    ) -> Selection:
        """Record the choice of each token's ``count`` best keys; return the handle for latent_attention.

        selection: one that is not needed any more, whose memory is taken.
        """
        self._expect_latents(pages)
        self._expect(weights, weights.width, "tokens")
        self._expect(q, weights.width * pages.shape[2], "tokens")
        expect_range("count", count, count, 1, 1 << 30)
        chosen = selection or Selection(weights.width)

        def run(step: Step) -> None:
            heads = self.view(q).reshape(-1, weights.width, pages.shape[2])
            places = step.page_table, step.q_start, step.kv_len, step.positions
            self._selected[chosen] = index_select(heads, self.view(weights), pages, *places, count)

        self._record(run)
        return chosen

    def _expect_latents(self, pages: Any) -> None:
        check_pages(pages, "C")
        if pages.shape[1] != self._limits.page_size:
            raise ValueError(f"pages must hold {self._limits.page_size} tokens, got {pages.shape[1]}")
        self._num_pages = min(self._num_pages, pages.shape[0])
