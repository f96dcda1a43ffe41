# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""expert_ffn on the CPU; see expert_ffn_ref for the contract."""

import numpy as np

from ftd.kernels.expert_ffn_ref import ALPHA, check, check_bank

from libc.stdint cimport uintptr_t
from libc.string cimport memset

from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._matmul_cy cimport (
    block_fn, has_integer_codes, matmul_fn, quantize_fn, records_fn, split_matmul_fn, takes_split, vector_fn,
)
from ftd.kernels._pool cimport Pool, Step, current_isa, run_ops

cdef extern from "expert_ffn_run.h" namespace "ftd" nogil:
    void expert_sort_op(const void*, const Step*, int32_t, int32_t) noexcept
    void expert_gather_op(const void*, const Step*, int32_t, int32_t) noexcept
    void expert_down_op(const void*, const Step*, int32_t, int32_t) noexcept
    OpFn expert_gate_up_select(int32_t isa)
    OpFn expert_activate_select(int32_t isa)
    OpFn expert_combine_select(int32_t isa)
    PartFn expert_hidden_select(int32_t isa)
    PartFn expert_column_select(int32_t isa)


cdef int _fill_product(Product* product, object bank, str role, bint fast) except -1:
    fill_matrix(bank.matrices[role].expert(0), &product.weight)
    product.exact = not (fast and has_integer_codes(product.weight))
    bias = bank.matrices.get(f"{role}_bias")
    cdef const float[:, ::1] bias_n
    if bias is not None:
        bias_n = bias.expert(0).planes[0]
        product.bias = &bias_n[0, 0]
    return 0


cdef int fill_expert_args(
    ExpertFfnArgs* args, object bank, int num_chosen, object activation, float limit, bint fast
) except -1:
    memset(args, 0, sizeof(ExpertFfnArgs))
    args.width, args.inner = check_bank(bank, activation)
    # What is said of expert 0 holds for all: one layout, and records one after the other.
    records = bank.records
    if len(records) > 1 and (
        not records.flags.c_contiguous or any(matrix.records is not records for matrix in bank.matrices.values())
    ):
        raise ValueError("the matrices of a bank must lie in its contiguous records")
    args.stride = records.shape[1]
    args.num_experts = records.shape[0]
    args.num_chosen = num_chosen
    roles = ("gate_up",) if "gate_up" in bank.matrices else ("gate", "up")
    args.num_gate_up = len(roles)
    for i, role in enumerate(roles):
        _fill_product(&args.gate_up[<int>i], bank, role, fast)
    _fill_product(&args.down, bank, "down", fast)
    args.clamped = activation == "clamped"
    args.limit = limit
    args.alpha = ALPHA
    args.quantize = quantize_fn()
    args.matmul = matmul_fn()
    args.vectors = vector_fn()
    args.block = block_fn()
    args.hidden_part = expert_hidden_select(current_isa())
    args.column_part = expert_column_select(current_isa())
    cdef bint by_tiles = fast and takes_split(args.down.weight, current_isa())
    for i in range(args.num_gate_up):
        by_tiles = by_tiles and takes_split(args.gate_up[<int>i].weight, current_isa())
    if by_tiles:
        set_tile_parts(args, 2)
    return 0


cdef void set_tile_parts(ExpertFfnArgs* args, int32_t parts) noexcept:
    args.tile_parts = parts
    args.tiles = split_matmul_fn(parts)
    args.records = records_fn(parts)


cdef void fill_expert_ops(const ExpertFfnArgs* args, Op* ops) noexcept:
    cdef int i
    ops[0].run = expert_sort_op
    ops[1].run = expert_gather_op
    ops[2].run = expert_gate_up_select(current_isa())
    ops[3].run = expert_activate_select(current_isa())
    ops[4].run = expert_down_op
    ops[5].run = expert_combine_select(current_isa())
    for i in range(NUM_EXPERT_OPS):
        ops[i].args = args


def expert_ffn(x, ids, weights, bank, activation="silu", limit=7.0, precision="fast", pool=None):
    """Return the weighted sum of what each token's experts make of it; see expert_ffn_ref."""
    check(x, ids, weights, bank, activation, precision)
    out = np.empty(x.shape, np.float32)
    if ids.size == 0:
        out[:] = 0.0
        return out
    cdef const float[:, ::1] x_td = np.ascontiguousarray(x)
    cdef const int32_t[:, ::1] ids_tk = np.ascontiguousarray(ids)
    cdef const float[:, ::1] weights_tk = np.ascontiguousarray(weights)
    cdef float[:, ::1] out_td = out
    cdef Pool threads = pool
    cdef int64_t parts = 1 if pool is None else threads.num_threads
    cdef ExpertFfnArgs args
    cdef Op ops[8]
    cdef Step step
    fill_expert_args(&args, bank, ids.shape[1], activation, limit, precision == "fast")
    cdef int64_t num_bytes = place_expert_workspace(&args, NULL, x_td.shape[0], parts)
    cdef unsigned char[::1] memory = np.empty(num_bytes + 64, np.uint8)
    place_expert_workspace(&args, <char*>((<uintptr_t>&memory[0] + 63) // 64 * 64), x_td.shape[0], parts)
    args.x = &x_td[0, 0]
    args.ids = &ids_tk[0, 0]
    args.weights = &weights_tk[0, 0]
    args.out = &out_td[0, 0]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    fill_expert_ops(&args, ops)
    with nogil:
        run_ops(threads, ops, NUM_EXPERT_OPS, &step)
    return out
