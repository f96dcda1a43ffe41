# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""StateOps: how CpuGraph records ops that carry a state from step to step; see reference_states."""

import numpy as np

from ftd.kernels import causal_conv_ref, gated_delta_ref

from ftd.kernels._causal_conv_cy cimport CausalConvArgs, causal_conv_fn
from ftd.kernels._gated_delta_cy cimport GatedDeltaArgs, gated_delta_fn
from ftd.kernels._recorder_cy cimport Recorder
from ftd.kernels._step_cy cimport address_of, floats_of


cdef class StateOps(Recorder):
    """The ops of recurrent layers; each step names the slot of every sequence in ``state_index``."""

    cdef float* _state(self, object state) except NULL:
        """Return where the slots lie; the graph keeps the array alive and bounds state_index by it."""
        if not state.flags["C_CONTIGUOUS"]:
            raise ValueError("state must be contiguous")
        slots = state.shape[0]
        self._num_states = min(self._num_states or slots, slots)
        self._keep.append(state)
        return <float*>address_of(state)

    def causal_conv(self, out, x, weight, state) -> None:
        """Record out = silu(convolution of x with weight [C, K]); state [slots, K-1, C] is kept."""
        self._expect(x, x.width, "tokens")
        self._expect(out, x.width, "tokens")
        if out is x:
            raise ValueError("the convolution of a buffer cannot go to the buffer itself")
        causal_conv_ref.check_weights(x.width, weight, state)
        taps = np.ascontiguousarray(weight.T)
        self._keep.append(taps)
        cdef CausalConvArgs* args = <CausalConvArgs*>self._new(sizeof(CausalConvArgs))
        args.x = self._data(x)
        args.weight = floats_of(taps)
        args.out = self._data(out)
        args.state = self._state(state)
        args.channels = x.width
        args.taps = taps.shape[0]
        self._record(causal_conv_fn(), args)

    def gated_delta(self, out, qkv, a, b, decay, bias, state, key_heads, tiled=False) -> None:
        """Record out = gated_delta(qkv, ...); state [slots, Hv, Ck, Cv] is kept."""
        self._expect(qkv, qkv.width, "tokens")
        value_heads, key_channels, value_channels = gated_delta_ref.check_weights(
            qkv.width, key_heads, decay, bias, state
        )
        for buffer, width in ((a, value_heads), (b, value_heads), (out, value_heads * value_channels)):
            self._expect(buffer, width, "tokens")
        cdef GatedDeltaArgs* args = <GatedDeltaArgs*>self._new(sizeof(GatedDeltaArgs))
        args.qkv = self._data(qkv)
        args.a = self._data(a)
        args.b = self._data(b)
        args.decay = floats_of(self._vector("decay", decay, value_heads))
        args.bias = floats_of(self._vector("bias", bias, value_heads))
        args.out = self._data(out)
        args.state = self._state(state)
        args.key_heads = key_heads
        args.value_heads = value_heads
        args.key_channels = key_channels
        args.value_channels = value_channels
        args.tiled = tiled
        self._record(gated_delta_fn(), args)
