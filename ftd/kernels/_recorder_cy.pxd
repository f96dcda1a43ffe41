# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Recorder: what classes that record ops of one kind into a CpuGraph share; see reference_recorder."""

from libc.stdint cimport int8_t, int32_t, int64_t
from libcpp.vector cimport vector

from ftd.kernels._pool cimport Op, OpFn, Pool
from ftd.kernels._step_cy cimport StepMemory

cdef class Recorder:
    cdef Pool _pool
    cdef int _parts
    cdef bint _fast
    cdef bint _finished
    cdef object _limits
    cdef dict _memory                # Buffer -> bytes of [max rows, width] floats
    cdef list _keep                  # arrays that ops point into
    cdef vector[void*] _structs      # args of all ops, freed with the graph
    cdef vector[Op] _ops
    cdef vector[int8_t] _one_token   # what becomes of each op in a step of one token
    cdef vector[Op] _light_ops       # those that chains hold
    cdef vector[Op] _one_token_ops   # the program of such a step
    cdef int64_t _most_rows          # of any buffer
    cdef StepMemory _step
    cdef int64_t _num_ids
    cdef int64_t _num_pages
    cdef int64_t _num_states         # slots of the smallest array of recurrent states; 0: no op has one

    cdef void* _new(self, size_t num_bytes) except NULL
    cdef int _record(self, OpFn run, const void* args) except -1
    cdef void _light(self, bint light) noexcept
    cdef void _needless(self) noexcept
    cdef int _chain(self) except -1
    cdef float* _data(self, object buffer) except NULL

# One of Rows: what a buffer holds a row for.
cdef int32_t rows_of(object buffer)
