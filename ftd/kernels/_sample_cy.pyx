# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""sample on the CPU; see sample_ref for the contract.

The memory of the chain belongs to this module and the GIL is held: a call takes some ten microseconds.
"""

from ftd.kernels.sample_ref import check, recent, reject

from libc.stdint cimport int32_t, int64_t

from ftd.kernels._pool cimport current_isa

cdef extern from "sample_run.h" namespace "ftd" nogil:
    cdef struct SampleOptions "ftd::SampleOptions":
        double temperature
        double top_p
        double min_p
        double typical_p
        double repeat_penalty
        double presence_penalty
        double frequency_penalty
        int32_t top_k

    cdef struct SampleKernels "ftd::SampleKernels":
        pass

    const SampleKernels* sample_select(int32_t isa)

    cdef cppclass SampleChain "ftd::SampleChain":
        int32_t sample(const SampleKernels*, const float*, int32_t, const SampleOptions&, const int32_t*, int64_t,
                       double, float*) except +

cdef SampleChain _chain


def sample(logits, params, history, uniform):
    """Return the id of the next token; see sample_ref."""
    check(logits, params, history, uniform)
    cdef const float[::1] logits_v = logits
    cdef const int32_t[::1] recent_s = recent(history, params, logits.shape[0])
    cdef SampleOptions options
    cdef float largest = 0.0
    options.temperature = params.temperature
    options.top_p = params.top_p
    options.min_p = params.min_p
    options.typical_p = params.typical_p
    options.repeat_penalty = params.repeat_penalty
    options.presence_penalty = params.presence_penalty
    options.frequency_penalty = params.frequency_penalty
    options.top_k = min(max(params.top_k, 0), logits.shape[0])
    cdef int32_t token = _chain.sample(
        sample_select(current_isa()),
        &logits_v[0],
        logits_v.shape[0],
        options,
        &recent_s[0],
        recent_s.shape[0],
        uniform,
        &largest,
    )
    if token < 0:
        raise reject(largest)
    return token
