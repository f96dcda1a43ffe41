"""Types of the compiled module: the API is graph_experts_ref's, though nothing is inherited at run time."""

from ftd.kernels import graph_experts_ref

class ExpertOps(graph_experts_ref.ExpertOps):
    """The ops of mixtures of experts."""
