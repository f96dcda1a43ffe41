# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""EncoderOps: the part of CpuGraph that records what encoders have and decoders have not."""

from ftd.kernels._graph_experts_cy cimport ExpertOps

cdef class EncoderOps(ExpertOps):
    pass
