# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""StateOps: the part of CpuGraph that records ops with a recurrent state."""

from ftd.kernels._recorder_cy cimport Recorder

cdef class StateOps(Recorder):
    cdef float* _state(self, object state) except NULL
