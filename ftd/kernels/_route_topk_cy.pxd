# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of route_topk."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "route_topk.h" namespace "ftd" nogil:
    cdef struct RouteTopkArgs "ftd::RouteTopkArgs":
        const float* logits
        const float* bias
        int32_t* ids
        float* weights
        float* work
        int32_t num_experts
        int32_t num_chosen
        int32_t sigmoid
        int32_t renormalise
        int32_t num_groups
        int32_t top_groups
        int32_t group_top
        float scale

cdef OpFn route_topk_fn() noexcept nogil
