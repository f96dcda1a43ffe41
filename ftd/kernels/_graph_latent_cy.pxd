# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""LatentOps: the part of CpuGraph that records multi-head latent attention."""

from ftd.kernels._graph_encoder_cy cimport EncoderOps

cdef class LatentOps(EncoderOps):
    cdef dict _latent_scratch        # floats a part -> memory that ops of one need share
