# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""LatentOps: how CpuGraph records multi-head latent attention; see reference_latent."""

import numpy as np

from ftd.kernels.reference_latent import Selection, head_shape
from ftd.kernels.index_select_ref import WORD
from ftd.kernels.latent_norm_ref import check as check_norm
from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.shapes import expect_range

from libc.stdint cimport uint64_t

from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._head_linear_cy cimport HeadLinearArgs, head_linear_fn, head_linear_scratch_floats
from ftd.kernels._index_select_cy cimport IndexSelectArgs, index_scratch_floats, index_select_fn
from ftd.kernels._latent_attention_cy cimport LatentAttentionArgs, latent_attention_fn, latent_scratch_floats
from ftd.kernels._latent_norm_cy cimport LatentNormArgs, latent_norm_fn
from ftd.kernels._latent_store_cy cimport LatentStoreArgs, fill_latent_pages, latent_store_fn
from ftd.kernels._step_cy cimport address_of, aligned, floats_of


cdef class LatentOps(EncoderOps):
    """The ops of attention over latents: pages hold one row a token, [P, page_size, C]."""

    def __init__(self, pool=None, **limits):
        super().__init__(pool, **limits)
        self._latent_scratch = {}

    def _scratch(self, floats: int):
        """Return memory of so many floats for each part; ops run one after the other and share it."""
        if floats not in self._latent_scratch:
            self._latent_scratch[floats] = aligned(4 * self._parts * floats)
        return self._latent_scratch[floats]

    def head_linear(self, out, x, num_heads, weight, which) -> None:
        """Record out = each head of x times its own rows of weight, and the head's tail."""
        self._expect(x, x.width, "tokens")
        used, _, wide = head_shape(x, num_heads, weight, which)
        self._expect(out, num_heads * wide, "tokens")
        if out is x:
            raise ValueError("the product of a buffer cannot go to the buffer itself")
        cdef HeadLinearArgs* args = <HeadLinearArgs*>self._new(sizeof(HeadLinearArgs))
        fill_matrix(weight, &args.weight)
        self._keep.append(weight)
        args.x = self._data(x)
        args.out = self._data(out)
        args.scratch = <float*>address_of(self._scratch(head_linear_scratch_floats(weight.shape[1])))
        args.heads = num_heads
        args.tail = which.tail
        args.interleaved = which.interleaved
        args.first = which.first
        args.rows = used
        args.transposed = which.transposed
        self._record(head_linear_fn(), args)

    def latent_norm(self, out, x, weight, eps: float, interleaved=False) -> None:
        """Record out = the first channels of x normalised, and the others."""
        self._expect(x, x.width, "tokens")
        self._expect(out, x.width, "tokens")
        if out is x:
            raise ValueError("the norm of a latent cannot go to the buffer itself")
        check_norm(np.empty((0, x.width), np.float32), weight, eps, interleaved)
        cdef LatentNormArgs* args = <LatentNormArgs*>self._new(sizeof(LatentNormArgs))
        args.x = self._data(x)
        args.weight = floats_of(self._vector("weight", weight, weight.shape[0]))
        args.out = self._data(out)
        args.width = x.width
        args.latent = weight.shape[0]
        args.eps = eps
        args.interleaved = interleaved
        self._record(latent_norm_fn(), args)

    def latent_store(self, x, pages) -> None:
        """Record the step's latents going to their pages; the graph keeps the array alive."""
        self._expect_latents(pages)
        self._expect(x, pages.shape[2], "tokens")
        cdef LatentStoreArgs* args = <LatentStoreArgs*>self._new(sizeof(LatentStoreArgs))
        args.x = self._data(x)
        fill_latent_pages(pages, &args.pages, &args.page_type)
        args.channels = pages.shape[2]
        self._record(latent_store_fn(), args)

    def latent_attention(
        self, out, q, pages, num_heads: int, latent: int, scale: float, selection=None
    ) -> None:
        """Record out = latent_attention(q, pages) with the step's sequences, over what is selected."""
        self._expect_latents(pages)
        channels = pages.shape[2]
        expect_range("latent", latent, latent, 1, channels)
        self._expect(q, num_heads * channels, "tokens")
        self._expect(out, num_heads * latent, "tokens")
        cdef LatentAttentionArgs* args = <LatentAttentionArgs*>self._new(sizeof(LatentAttentionArgs))
        fill_latent_pages(pages, <void**>&args.pages, &args.page_type)
        args.q = self._data(q)
        args.out = self._data(out)
        args.scratch = <float*>address_of(self._scratch(latent_scratch_floats(channels, latent)))
        args.heads = num_heads
        args.channels = channels
        args.latent = latent
        args.scale = scale
        if selection is not None:
            args.selected = <const uint64_t*>address_of(self._latent_scratch[selection])
            args.words = self._words()
        self._record(latent_attention_fn(), args)

    def _words(self) -> int:
        return -(-self._limits.max_pages_per_sequence * self._limits.page_size // WORD)

    def index_select(self, q, weights, pages, count: int, selection=None):
        """Record the choice of each token's count best keys; return the handle for latent_attention."""
        self._expect_latents(pages)
        self._expect(weights, weights.width, "tokens")
        self._expect(q, weights.width * pages.shape[2], "tokens")
        expect_range("count", count, count, 1, 1 << 30)
        words = self._words()
        if selection is None:
            selection = Selection(weights.width)
            self._latent_scratch[selection] = aligned(8 * self._limits.max_tokens * words)
        cdef IndexSelectArgs* args = <IndexSelectArgs*>self._new(sizeof(IndexSelectArgs))
        fill_latent_pages(pages, <void**>&args.pages, &args.page_type)
        args.q = self._data(q)
        args.weights = self._data(weights)
        args.selected = <uint64_t*>address_of(self._latent_scratch[selection])
        floats = index_scratch_floats(weights.width, pages.shape[2], words)
        args.scratch = <float*>address_of(self._scratch(floats))
        args.heads = weights.width
        args.channels = pages.shape[2]
        args.count = count
        args.words = words
        self._record(index_select_fn(), args)
        return selection

    def _expect_latents(self, pages) -> None:
        check_pages(pages, "C")
        if pages.shape[1] != self._limits.page_size:
            raise ValueError(f"pages must hold {self._limits.page_size} tokens, got {pages.shape[1]}")
        self._num_pages = min(self._num_pages, pages.shape[0])
        self._keep.append(pages)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and of what ops share."""
        return super().num_bytes + sum(scratch.nbytes for scratch in self._latent_scratch.values())
