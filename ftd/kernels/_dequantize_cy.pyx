# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""dequantize on the CPU, and the C view of a QuantMatrix; see dequantize_ref for the contract."""

import numpy as np

from ftd.kernels.quant import FORMATS, QuantMatrix

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, run_ops

cdef extern from "dequantize_run.h" namespace "ftd" nogil:
    cdef struct DequantizeArgs "ftd::DequantizeArgs":
        Matrix weight
        float* out

    void dequantize_run(const void*, const Step*, int32_t, int32_t) noexcept

_NUMBER = {name: number for number, name in enumerate(FORMATS)}


cdef int fill_matrix(object weight, Matrix* out) except -1:
    if not isinstance(weight, QuantMatrix):
        raise TypeError(f"a weight must be a QuantMatrix, got {type(weight).__name__}")
    cdef const unsigned char[::1] plane_bytes
    cdef int i
    memset(out, 0, sizeof(Matrix))
    out.format = _NUMBER[weight.format]
    out.n, out.k = weight.shape
    for i, plane in enumerate(weight.planes):
        plane_bytes = plane.reshape(-1).view(np.uint8)
        out.planes[i] = &plane_bytes[0]
    return 0


def dequantize(weight, pool=None):
    """Return the exact values of ``weight`` as floats, [N, K]; see dequantize_ref."""
    cdef DequantizeArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    cdef float[:, ::1] out_nk
    fill_matrix(weight, &args.weight)
    out = np.empty(weight.shape, np.float32)
    out_nk = out
    args.out = &out_nk[0, 0]
    memset(&step, 0, sizeof(Step))
    op.run = dequantize_run
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
