# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C view of a QuantMatrix, for every op that reads weights."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "matrix.h" namespace "ftd" nogil:
    cdef struct Matrix "ftd::Matrix":
        int32_t format
        int64_t n
        int64_t k
        const void* planes[6]

# Fills out from a QuantMatrix, whose planes the caller keeps alive.
cdef int fill_matrix(object weight, Matrix* out) except -1
