# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The ops quantize and matmul for programs: see src/matmul.h."""

from libc.stdint cimport int8_t, int32_t, int64_t

from ftd.kernels._dequantize_cy cimport Matrix
from ftd.kernels._pool cimport OpFn

cdef extern from "matmul.h" namespace "ftd" nogil:
    cdef struct Activations "ftd::Activations":
        int8_t* q

    int64_t activation_bytes(int64_t t, int64_t k, int32_t isa)
    Activations place_activations(void* memory, int64_t t, int64_t k, int32_t isa)

    cdef struct QuantizeArgs "ftd::QuantizeArgs":
        const float* x
        int64_t k
        int32_t rows
        Activations out

    cdef struct Product "ftd::Product":
        Matrix weight
        const float* bias
        float* out
        int32_t add
        int32_t exact

    cdef struct MatmulArgs "ftd::MatmulArgs":
        const Product* products
        int32_t num_products
        int32_t rows
        const float* x
        Activations activations
        char* scratch
        int64_t scratch_stride

    ctypedef void (*VectorFn "ftd::VectorFn")(
        const Product& p, const float* x, const Activations& codes, int64_t begin, int64_t end, const Matrix* next,
        int64_t next_row, char* scratch
    ) noexcept nogil
    ctypedef void (*BlockFn "ftd::BlockFn")(const float* x, const Activations& out, int64_t b) noexcept nogil

    cdef struct TokenRows "ftd::TokenRows"
    ctypedef void (*RecordsFn "ftd::RecordsFn")(const TokenRows& rows, int64_t k, char* records) noexcept nogil

    int64_t matmul_scratch_bytes(int64_t k, int32_t isa)
    bint has_integer_codes(const Matrix& w)
    bint takes_split(const Matrix& w, int32_t isa)

cdef OpFn quantize_fn() noexcept nogil
cdef OpFn matmul_fn() noexcept nogil
cdef OpFn split_fn() noexcept nogil
cdef OpFn split_matmul_fn(int32_t parts) noexcept nogil
cdef RecordsFn records_fn(int32_t parts) noexcept nogil
cdef VectorFn vector_fn() noexcept nogil
cdef BlockFn block_fn() noexcept nogil
