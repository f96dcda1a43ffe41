# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""gated_delta on the CPU; see gated_delta_ref for the contract."""

import numpy as np

from ftd.kernels.gated_delta_ref import check_weights
from ftd.kernels.sequences import check_sequences
from ftd.kernels.shapes import expect

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "gated_delta_run.h" namespace "ftd" nogil:
    OpFn gated_delta_select(int32_t isa)


cdef OpFn gated_delta_fn() noexcept nogil:
    return gated_delta_select(current_isa())


def gated_delta(qkv, a, b, decay, bias, state, key_heads, q_start, positions, state_index, tiled=False, pool=None):
    """Read and correct one matrix of state for each value head; see gated_delta_ref."""
    expect("qkv", qkv, "float32", ("T", "channels"))
    value_heads, key_channels, value_channels = check_weights(qkv.shape[1], key_heads, decay, bias, state)
    expect("a", a, "float32", (qkv.shape[0], value_heads))
    expect("b", b, "float32", (qkv.shape[0], value_heads))
    check_sequences(q_start, positions, state_index, qkv.shape[0], state.shape[0])
    out = np.empty((qkv.shape[0], value_heads * value_channels), np.float32)
    if qkv.shape[0] == 0:
        return out
    cdef const float[:, ::1] qkv_tc = qkv
    cdef const float[:, ::1] a_th = a
    cdef const float[:, ::1] b_th = b
    cdef const float[::1] decay_h = np.ascontiguousarray(decay)
    cdef const float[::1] bias_h = np.ascontiguousarray(bias)
    cdef float[:, :, :, ::1] state_shkv = state
    cdef const int32_t[::1] start_b = q_start
    cdef const int32_t[::1] positions_t = positions
    cdef const int32_t[::1] index_b = state_index
    cdef float[:, ::1] out_tc = out
    cdef GatedDeltaArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.qkv = &qkv_tc[0, 0]
    args.a = &a_th[0, 0]
    args.b = &b_th[0, 0]
    args.decay = &decay_h[0]
    args.bias = &bias_h[0]
    args.state = &state_shkv[0, 0, 0, 0]
    args.out = &out_tc[0, 0]
    args.key_heads = key_heads
    args.value_heads = value_heads
    args.key_channels = key_channels
    args.value_channels = value_channels
    args.tiled = tiled
    memset(&step, 0, sizeof(Step))
    step.num_tokens = <int32_t>qkv_tc.shape[0]
    step.num_sequences = <int32_t>index_b.shape[0]
    step.q_start = &start_b[0]
    step.positions = &positions_t[0]
    step.state_index = &index_b[0]
    op.run = gated_delta_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
