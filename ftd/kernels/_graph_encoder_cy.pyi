"""Types of the compiled module: the API is graph_encoder_ref's, though nothing is inherited at run time."""

from ftd.kernels import graph_encoder_ref, graph_experts_ref

class EncoderOps(graph_encoder_ref.EncoderOps, graph_experts_ref.ExpertOps):
    """The ops of encoders."""
