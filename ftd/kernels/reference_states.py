"""StateOps: how ReferenceGraph records ops that carry a state from step to step."""

from collections.abc import Callable

from ftd.kernels import causal_conv_ref, gated_delta_ref
from ftd.kernels.reference_recorder import Buffer, Floats, Recorder
from ftd.kernels.step import Step


class StateOps(Recorder):
    """The ops of recurrent layers; each step names the slot of every sequence in ``state_index``."""

    def causal_conv(self, out: Buffer, x: Buffer, weight: Floats, state: Floats) -> None:
        """Record out = silu(convolution of x with weight [C, K]); ``state`` [slots, K-1, C] is kept."""
        self._expect(x, x.width, "tokens")
        self._expect(out, x.width, "tokens")
        if out is x:
            raise ValueError("the convolution of a buffer cannot go to the buffer itself")
        causal_conv_ref.check_weights(x.width, weight, state)

        def run(step: Step) -> None:
            assert step.state_index is not None
            places = step.q_start, step.positions, step.state_index
            self._write(out, causal_conv_ref.causal_conv(self.view(x), weight, state, *places))

        self._record_state(state, run)

    def gated_delta(
        self,
        out: Buffer,
        qkv: Buffer,
        a: Buffer,
        b: Buffer,
        decay: Floats,
        bias: Floats,
        state: Floats,
        key_heads: int,
        tiled: bool = False,
    ) -> None:
        """Record out = gated_delta(qkv, …); ``state`` [slots, Hv, Ck, Cv] is kept."""
        self._expect(qkv, qkv.width, "tokens")
        value_heads, _, value_channels = gated_delta_ref.check_weights(
            qkv.width, key_heads, decay, bias, state
        )
        for buffer, width in ((a, value_heads), (b, value_heads), (out, value_heads * value_channels)):
            self._expect(buffer, width, "tokens")

        def run(step: Step) -> None:
            assert step.state_index is not None
            places = step.q_start, step.positions, step.state_index
            arrays = self.view(qkv), self.view(a), self.view(b), decay, bias, state
            self._write(out, gated_delta_ref.gated_delta(*arrays, key_heads, *places, tiled))

        self._record_state(state, run)

    def _record_state(self, state: Floats, op: Callable[[Step], None]) -> None:
        slots = state.shape[0]
        self._num_states = min(self._num_states or slots, slots)
        self._record(op)
