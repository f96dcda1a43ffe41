"""Types of the compiled module: the API is reference_recorder's, though nothing is inherited at run time."""

from ftd.kernels import reference_recorder

class Recorder(reference_recorder.Recorder):
    """Owns the buffers and the program of a graph."""
