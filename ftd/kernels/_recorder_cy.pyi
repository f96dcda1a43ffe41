"""Types of the compiled module: the API is recorder_ref's, though nothing is inherited at run time."""

from ftd.kernels import recorder_ref

class Recorder(recorder_ref.Recorder):
    """Owns the buffers and the program of a graph."""
