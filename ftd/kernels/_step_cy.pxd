# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The memory of a program's step and of its buffers."""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.vector cimport vector

from ftd.kernels._pool cimport Step

# num_bytes zeroed bytes (an array) that start at a multiple of 64; pages are only taken when first written.
cdef object aligned(int64_t num_bytes)

# Where an array's contiguous data lies; the caller keeps the array alive.
cdef uintptr_t address_of(object array) except 0
cdef const float* floats_of(object array) except NULL

cdef class StepMemory:
    cdef Step step                     # points into _indices; what ops read
    cdef object _limits
    cdef vector[int32_t] _indices
    cdef int fill(self, tuple arrays, int64_t num_ids, int64_t num_pages, int64_t num_states) except -1
    cdef int _copy(
        self,
        const int32_t[::1] ids,
        const int32_t[::1] positions,
        const int32_t[::1] kv_index,
        const int32_t[::1] q_start,
        const int32_t[::1] kv_len,
        const int32_t[:, ::1] page_table,
        const int32_t[::1] logit_rows,
        const int32_t[::1] state_index,
    ) except -1
    cdef bint _is_sound(self, int64_t num_ids, int64_t num_pages, int64_t num_states) noexcept
