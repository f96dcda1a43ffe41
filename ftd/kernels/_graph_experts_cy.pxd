# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""ExpertOps: the part of CpuGraph that records mixtures of experts."""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from ftd.kernels._expert_ffn_cy cimport ExpertFfnArgs
from ftd.kernels._graph_states_cy cimport StateOps

cdef class ExpertOps(StateOps):
    cdef vector[ExpertFfnArgs*] _experts
    cdef int64_t _expert_bytes       # of the workspace that all expert_ffn ops share
    cdef dict _routed                # Routing -> (ids, weights, uses)
