"""Types of the compiled module: the API is graph_states_ref's, though nothing is inherited at run time."""

from ftd.kernels import graph_states_ref

class StateOps(graph_states_ref.StateOps):
    """The ops of recurrent layers."""
