"""Random weights of every FTW format, with scales of the sizes that real models have."""

import numpy as np

from ftd.kernels.quant import FORMATS, QuantMatrix


def random_matrix(name: str, rows: int, columns: int, rng: np.random.Generator) -> QuantMatrix:
    """Return a [rows, columns] matrix of format ``name``: every code possible, values around 1."""
    planes = []
    for plane in FORMATS[name].planes:
        shape = FORMATS[name].plane_shape(plane, (rows, columns))
        dtype = np.dtype(plane.dtype)
        if name == "bf16":
            array = (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(dtype)
        elif dtype.kind == "f":
            spread = 1.0 if plane.name == "codes" else 0.01
            array = (rng.standard_normal(shape) * spread).astype(dtype)
        elif name == "mxfp4" and plane.name == "scales":
            array = rng.integers(118, 130, shape, np.uint8)
        elif name in ("nvfp4", "fp8_b128") and (plane.name == "scales" or name == "fp8_b128"):
            array = rng.integers(0, 256, shape, np.uint8)
            array[(array & 127) == 127] = 0  # the codes that are no numbers
        else:
            array = rng.integers(0, 256, shape, np.uint8).view(dtype)
        planes.append(array)
    return QuantMatrix(name, (rows, columns), tuple(planes))
