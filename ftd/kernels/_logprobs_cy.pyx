# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""logprobs on the CPU; see logprobs_ref for the contract.

The memory of the selection belongs to this module and the GIL is held: a call takes some ten microseconds.
"""

from ftd.kernels.logprobs_ref import check
from ftd.kernels.sample_ref import reject

from libc.math cimport isfinite
from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from ftd.kernels._pool cimport current_isa

cdef extern from "sample_run.h" namespace "ftd" nogil:
    cdef struct SampleKernels "ftd::SampleKernels":
        pass

    cdef struct Candidate "ftd::Candidate":
        int32_t id
        double key

    const SampleKernels* sample_select(int32_t isa)

    cdef cppclass SampleChain "ftd::SampleChain":
        double logprobs(const SampleKernels*, const float*, int32_t, int32_t, int32_t, float*) except +
        vector[Candidate]& candidates()

cdef SampleChain _chain


def logprobs(logits, token, num_top=0):
    """Return a token's logprob and the most probable ids with theirs; see logprobs_ref."""
    check(logits, token, num_top)
    cdef const float[::1] logits_v = logits
    cdef float largest = 0.0
    cdef int32_t wanted = min(num_top, logits.shape[0])
    cdef double own = _chain.logprobs(
        sample_select(current_isa()), &logits_v[0], logits_v.shape[0], token, wanted, &largest
    )
    if not isfinite(largest):
        raise reject(largest)
    return own, [(candidate.id, candidate.key) for candidate in _chain.candidates()]
