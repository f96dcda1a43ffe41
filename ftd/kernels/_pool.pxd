# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What every op extension cimports: the C structs of op.h, the pool and the instruction set in force."""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

cdef extern from "op.h" namespace "ftd" nogil:
    cdef struct Step "ftd::Step":
        int32_t num_tokens
        int32_t num_sequences
        int32_t num_logits
        int32_t page_size
        int32_t max_pages
        const int32_t* ids
        const int32_t* positions
        const int32_t* kv_index
        const int32_t* q_start
        const int32_t* kv_len
        const int32_t* page_table
        const int32_t* logit_rows
        const int32_t* state_index

    ctypedef void (*OpFn "ftd::OpFn")(const void*, const Step*, int32_t, int32_t) noexcept nogil

    cdef struct Op "ftd::Op":
        OpFn run
        const void* args

    int32_t ROWS_TOKENS "ftd::ROWS_TOKENS"
    int32_t ROWS_LOGITS "ftd::ROWS_LOGITS"

cdef extern from "pool.h" namespace "ftd" nogil:
    cdef cppclass ThreadPool "ftd::ThreadPool":
        ThreadPool(int32_t, int32_t, const vector[int]&) except +
        void run(const Op*, int32_t, const Step*)

cdef class Pool:
    cdef ThreadPool* threads
    cdef readonly int num_threads
    cdef int run(self, const Op* ops, int32_t num_ops, const Step* step) except -1 nogil

# Runs ops on the pool, or on the calling thread alone where pool is None. Call without the GIL.
cdef int run_ops(Pool pool, const Op* ops, int32_t num_ops, const Step* step) except -1 nogil

# The level of ftd::Isa in force; ask it each time an op is made.
cdef int32_t current_isa() noexcept nogil
