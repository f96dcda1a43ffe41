"""Types of the compiled module: the API is reference_states's, though nothing is inherited at run time."""

from ftd.kernels import reference_states

class StateOps(reference_states.StateOps):
    """The ops of recurrent layers."""
