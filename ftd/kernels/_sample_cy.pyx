# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""sample on the CPU; see sample_ref for the contract.

The memory of the chain belongs to this module and the GIL is held: a call takes some ten microseconds.
"""

from ftd.kernels.sample_ref import check, recent, reject

from libc.math cimport isfinite
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
    cdef SampleOptions options
    cdef const float[::1] logits_v
    cdef const int32_t[::1] recent_s
    cdef const int32_t* last = NULL
    cdef int64_t num_last = 0
    cdef double number = uniform
    cdef float largest = 0.0
    options.temperature = params.temperature
    options.top_p = params.top_p
    options.min_p = params.min_p
    options.typical_p = params.typical_p
    options.repeat_penalty = params.repeat_penalty
    options.presence_penalty = params.presence_penalty
    options.frequency_penalty = params.frequency_penalty
    try:
        logits_v = logits
        recent_s = history
    except ValueError:
        check(logits, params, history, uniform)  # says it in the words of the contract
        raise
    if not (logits_v.shape[0] and within_bounds(options, number)):
        check(logits, params, history, uniform)
    if options.repeat_penalty != 1.0 or options.presence_penalty != 0.0 or options.frequency_penalty != 0.0:
        recent_s = recent(history, params, logits.shape[0])
        num_last = recent_s.shape[0]
        if num_last:
            last = &recent_s[0]
    options.top_k = min(max(params.top_k, 0), logits_v.shape[0])
    cdef int32_t token = _chain.sample(
        sample_select(current_isa()), &logits_v[0], logits_v.shape[0], options, last, num_last, number, &largest
    )
    if token < 0:
        raise reject(largest)
    return token


cdef bint within_bounds(const SampleOptions& options, double number) noexcept:
    """The bounds that ``check`` gives numbers; asked for every token, so without Python."""
    return (
        0.0 <= number < 1.0
        and options.repeat_penalty > 0.0
        and isfinite(options.repeat_penalty)
        and isfinite(options.temperature)
        and isfinite(options.top_p)
        and isfinite(options.min_p)
        and isfinite(options.typical_p)
        and isfinite(options.presence_penalty)
        and isfinite(options.frequency_penalty)
    )
