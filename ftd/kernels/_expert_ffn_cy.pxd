# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The ops of expert_ffn for programs: see src/expert_ffn.h."""

from libc.stdint cimport int32_t, int64_t, uint16_t

from ftd.kernels._matmul_cy cimport BlockFn, Product, RecordsFn, VectorFn
from ftd.kernels._pool cimport Op, OpFn

cdef extern from "expert_ffn.h" namespace "ftd" nogil:
    cdef struct ExpertFfnArgs "ftd::ExpertFfnArgs"
    ctypedef void (*PartFn "ftd::PartFn")(const ExpertFfnArgs& a, int64_t begin, int64_t end, int64_t next) noexcept

    cdef struct ExpertFfnArgs "ftd::ExpertFfnArgs":
        const float* x
        const uint16_t* bfloats
        const int32_t* ids
        const float* weights
        float* out
        uint16_t* out_bfloats
        int64_t* uses
        int64_t width
        int64_t inner
        int64_t stride
        int32_t num_experts
        int32_t num_chosen
        int32_t num_gate_up
        int32_t clamped
        float limit
        float alpha
        OpFn quantize
        OpFn matmul
        int32_t tile_parts
        OpFn tiles
        RecordsFn records
        VectorFn vectors
        BlockFn block
        PartFn hidden_part
        PartFn column_part
        Product gate_up[2]
        Product down

    int64_t place_expert_workspace(ExpertFfnArgs* args, char* memory, int64_t tokens, int64_t parts)
    int32_t NUM_EXPERT_OPS "ftd::NUM_EXPERT_OPS"

# Takes the bank's matrices and the constants over; x, ids, weights, out, uses and the workspace are left to the caller,
# who keeps the bank alive.
cdef int fill_expert_args(
    ExpertFfnArgs* args, object bank, int num_chosen, object activation, float limit, bint fast
) except -1

# Lets tiles of AMX, where they take the bank, compute with so many bfloat16 of a value: 2, or 1 as cards do.
cdef void set_tile_parts(ExpertFfnArgs* args, int32_t parts) noexcept

# Writes the NUM_EXPERT_OPS ops that compute args.
cdef void fill_expert_ops(const ExpertFfnArgs* args, Op* ops) noexcept
