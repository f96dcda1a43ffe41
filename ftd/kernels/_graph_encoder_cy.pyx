# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""EncoderOps: how CpuGraph records what encoders have and decoders have not; see reference_encoder."""

import numpy as np

from ftd.kernels.reference_encoder import check_table

from ftd.kernels._gelu_cy cimport GeluArgs, gelu_fn
from ftd.kernels._layer_norm_cy cimport LayerNormArgs, layer_norm_fn
from ftd.kernels._position_embedding_cy cimport PositionEmbeddingArgs, position_embedding_fn
from ftd.kernels._recorder_cy cimport rows_of
from ftd.kernels._step_cy cimport floats_of


cdef class EncoderOps(ExpertOps):
    """The ops of encoders; attention in both directions is attention's own option."""

    def position_embedding(self, x, table) -> None:
        """Record x += table[positions]; table [S, D] has a row for each position that can be."""
        self._expect(x, x.width, "tokens")
        check_table(table, x.width, self._limits)
        kept = np.ascontiguousarray(table)
        self._keep.append(kept)
        cdef PositionEmbeddingArgs* args = <PositionEmbeddingArgs*>self._new(sizeof(PositionEmbeddingArgs))
        args.x = args.out = self._data(x)
        args.table = floats_of(kept)
        args.width = x.width
        self._record(position_embedding_fn(), args)

    def layer_norm(self, out, x, weight, bias, eps: float) -> None:
        """Record out = layer_norm(x, weight, bias, eps); out may be x."""
        self._expect(out, x.width, x.rows)
        self._expect(x, x.width, x.rows)
        if not eps >= 0.0:
            raise ValueError(f"eps must be at least 0, got {eps}")
        cdef LayerNormArgs* args = <LayerNormArgs*>self._new(sizeof(LayerNormArgs))
        args.x = self._data(x)
        args.weight = floats_of(self._vector("weight", weight, x.width))
        args.bias = floats_of(self._vector("bias", bias, x.width))
        args.out = self._data(out)
        args.width = x.width
        args.eps = eps
        args.rows = rows_of(x)
        self._record(layer_norm_fn(), args)

    def gelu(self, out, x) -> None:
        """Record out = gelu(x), with the error function; out may be x."""
        self._expect(out, x.width, x.rows)
        self._expect(x, x.width, x.rows)
        cdef GeluArgs* args = <GeluArgs*>self._new(sizeof(GeluArgs))
        args.x = self._data(x)
        args.out = self._data(out)
        args.width = x.width
        args.rows = rows_of(x)
        self._record(gelu_fn(), args)
