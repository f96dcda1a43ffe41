"""Types of the compiled module: the API is reference_experts's, though nothing is inherited at run time."""

from ftd.kernels import reference_experts

class ExpertOps(reference_experts.ExpertOps):
    """The ops of mixtures of experts."""
