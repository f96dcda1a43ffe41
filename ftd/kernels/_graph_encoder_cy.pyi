"""Types of the compiled module: the API is reference_encoder's, though nothing is inherited at run time."""

from ftd.kernels import reference_encoder, reference_experts

class EncoderOps(reference_encoder.EncoderOps, reference_experts.ExpertOps):
    """The ops of encoders."""
