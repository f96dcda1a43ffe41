# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""matmul on the CPU; see matmul_ref for the contract."""

import numpy as np

from ftd.kernels.matmul_ref import check

from libc.string cimport memset
from libc.stdint cimport uintptr_t

from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._pool cimport Op, Pool, ROWS_TOKENS, Step, current_isa, run_ops

cdef extern from "matmul_run.h" namespace "ftd" nogil:
    OpFn quantize_select(int32_t isa)
    OpFn matmul_select(int32_t isa)
    OpFn split_select()
    OpFn split_matmul_select(int32_t parts)
    RecordsFn records_select(int32_t parts)
    VectorFn vector_select(int32_t isa)
    BlockFn block_select(int32_t isa)


cdef OpFn quantize_fn() noexcept nogil:
    return quantize_select(current_isa())


cdef OpFn matmul_fn() noexcept nogil:
    return matmul_select(current_isa())


cdef OpFn split_fn() noexcept nogil:
    """The quantize of products whose weights all take a split x."""
    return split_select()


cdef OpFn split_matmul_fn(int32_t parts) noexcept nogil:
    return split_matmul_select(parts)


cdef RecordsFn records_fn(int32_t parts) noexcept nogil:
    """What writes the records of rows that lie anywhere."""
    return records_select(parts)


cdef VectorFn vector_fn() noexcept nogil:
    return vector_select(current_isa())


cdef BlockFn block_fn() noexcept nogil:
    return block_select(current_isa())


def matmul(x, weight, bias=None, precision="fast", pool=None):
    """Return x W^T (+ bias), [T, N]; see matmul_ref."""
    check(x, weight, bias, precision)
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    if x.shape[0] == 0:
        return out
    cdef Product product
    cdef QuantizeArgs quantize_args
    cdef MatmulArgs args
    cdef Step step
    cdef Op ops[2]
    cdef Pool threads = pool
    cdef bint split
    cdef int32_t first, parts = 1 if pool is None else threads.num_threads
    cdef const float[:, ::1] x_tk = np.ascontiguousarray(x)
    cdef const float[::1] bias_n
    cdef float[:, ::1] out_tn = out
    cdef int64_t tokens = x.shape[0], k = x.shape[1]
    memset(&step, 0, sizeof(Step))
    memset(&product, 0, sizeof(Product))
    step.num_tokens = x.shape[0]
    fill_matrix(weight, &product.weight)
    if bias is not None:
        bias_n = np.ascontiguousarray(bias)
        product.bias = &bias_n[0]
    product.out = &out_tn[0, 0]
    product.exact = precision == "f32" or not has_integer_codes(product.weight)
    args.products = &product
    args.num_products = 1
    args.rows = ROWS_TOKENS
    args.x = &x_tk[0, 0]
    args.scratch_stride = (matmul_scratch_bytes(k, current_isa()) + 63) // 64 * 64
    cdef int64_t size = activation_bytes(tokens, k, current_isa()) + parts * args.scratch_stride + 128
    cdef unsigned char[::1] memory = np.empty(size, np.uint8)
    cdef char* start = <char*>((<uintptr_t>&memory[0] + 63) // 64 * 64)
    args.scratch = start
    args.activations = place_activations(start + parts * args.scratch_stride, tokens, k, current_isa())
    quantize_args.x = args.x
    quantize_args.k = k
    quantize_args.rows = ROWS_TOKENS
    quantize_args.out = args.activations
    split = precision == "fast" and takes_split(product.weight, current_isa())
    ops[0].run = split_fn() if split else quantize_fn()
    ops[0].args = &quantize_args
    ops[1].run = split_matmul_fn(2) if split else matmul_fn()
    ops[1].args = &args
    first = 1 if product.exact and not split else 0
    with nogil:
        run_ops(threads, &ops[first], 2 - first, &step)
    return out
