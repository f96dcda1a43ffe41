# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""causal_conv on the CPU; see causal_conv_ref for the contract."""

import numpy as np

from ftd.kernels.causal_conv_ref import check_weights
from ftd.kernels.sequences import check_sequences
from ftd.kernels.shapes import expect

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "causal_conv_run.h" namespace "ftd" nogil:
    OpFn causal_conv_select(int32_t isa)


cdef OpFn causal_conv_fn() noexcept nogil:
    return causal_conv_select(current_isa())


def causal_conv(x, weight, state, q_start, positions, state_index, pool=None):
    """Convolve each channel with its last inputs, then silu; see causal_conv_ref."""
    expect("x", x, "float32", ("T", "C"))
    check_weights(x.shape[1], weight, state)
    check_sequences(q_start, positions, state_index, x.shape[0], state.shape[0])
    out = np.empty_like(x)
    if x.size == 0:
        return out
    cdef const float[:, ::1] x_tc = x
    cdef const float[:, ::1] weight_kc = np.ascontiguousarray(weight.T)
    cdef float[:, :, ::1] state_skc = state
    cdef const int32_t[::1] start_b = q_start
    cdef const int32_t[::1] positions_t = positions
    cdef const int32_t[::1] index_b = state_index
    cdef float[:, ::1] out_tc = out
    cdef CausalConvArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_tc[0, 0]
    args.weight = &weight_kc[0, 0]
    args.state = &state_skc[0, 0, 0]
    args.out = &out_tc[0, 0]
    args.channels = x_tc.shape[1]
    args.taps = <int32_t>weight_kc.shape[0]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = <int32_t>x_tc.shape[0]
    step.num_sequences = <int32_t>index_b.shape[0]
    step.q_start = &start_b[0]
    step.positions = &positions_t[0]
    step.state_index = &index_b[0]
    op.run = causal_conv_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
