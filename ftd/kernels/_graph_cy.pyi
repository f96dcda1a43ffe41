"""Types of the compiled module: the API is ReferenceGraph's, though nothing is inherited at run time."""

from ftd.kernels.reference_graph import ReferenceGraph

class CpuGraph(ReferenceGraph):
    """A recorded step; see ReferenceGraph. Keeps weights and pages alive. One thread at a time."""
