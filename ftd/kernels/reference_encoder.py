"""EncoderOps: how ReferenceGraph records what encoders (BERT and its kin) have and decoders have not."""

from ftd.kernels.gelu_ref import gelu
from ftd.kernels.layer_norm_ref import layer_norm
from ftd.kernels.position_embedding_ref import position_embedding
from ftd.kernels.reference_recorder import Buffer, Floats, Recorder
from ftd.kernels.shapes import ArrayLike, expect
from ftd.kernels.step import Limits


def check_table(table: ArrayLike, width: int, limits: Limits) -> None:
    """Raise ValueError unless ``table`` has a row for each position that a step can have."""
    expect("table", table, "float32", ("S", width))
    longest = limits.max_pages_per_sequence * limits.page_size
    if table.shape[0] < longest:
        raise ValueError(f"table must have a row for each of {longest} positions, got {table.shape[0]}")


class EncoderOps(Recorder):
    """The ops of encoders; attention in both directions is ``attention``'s own option."""

    def position_embedding(self, x: Buffer, table: Floats) -> None:
        """Record x += table[positions]; ``table`` [S, D] has a row for each position that can be."""
        self._expect(x, x.width, "tokens")
        check_table(table, x.width, self._limits)
        self._record(lambda step: self._write(x, position_embedding(self.view(x), step.positions, table)))

    def layer_norm(self, out: Buffer, x: Buffer, weight: Floats, bias: Floats, eps: float) -> None:
        """Record out = layer_norm(x, weight, bias, eps); ``out`` may be ``x``."""
        self._expect(out, x.width, x.rows)
        self._expect(x, x.width, x.rows)
        expect("weight", weight, "float32", (x.width,))
        expect("bias", bias, "float32", (x.width,))
        self._record(lambda step: self._write(out, layer_norm(self.view(x), weight, bias, eps)))

    def gelu(self, out: Buffer, x: Buffer) -> None:
        """Record out = gelu(x), with the error function; ``out`` may be ``x``."""
        self._expect(out, x.width, x.rows)
        self._expect(x, x.width, x.rows)
        self._record(lambda step: self._write(out, gelu(self.view(x))))
