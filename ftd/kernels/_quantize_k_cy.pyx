# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""quantize_k on the CPU; see quantize_k_ref for the contract. One thread; the GIL is released meanwhile."""

import numpy as np

from ftd.kernels.quantize_k_ref import check

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memset

from ftd.kernels._pool cimport OpFn, Step, current_isa

cdef extern from "quantize_k_run.h" namespace "ftd" nogil:
    OpFn quantize_k_select(int32_t isa)


def quantize_k(blocks, format):
    """Return the planes of blocks of 256 values; see quantize_k_ref."""
    check(blocks, format)
    cdef QuantizeKArgs args
    cdef Step step
    cdef int64_t num_blocks = blocks.shape[0]
    cdef const float[:, ::1] x = np.ascontiguousarray(blocks)
    cdef OpFn run = quantize_k_select(current_isa())
    memset(&step, 0, sizeof(Step))
    memset(&args, 0, sizeof(QuantizeKArgs))
    args.num_blocks = num_blocks
    args.bits = int(format[1])
    is_symmetric = args.bits == 6
    names = {4: "codes scales mins d dmin", 5: "codes high scales mins d dmin", 6: "codes high scales d"}
    widths = {"codes": 128, "high": 64 if is_symmetric else 32, "scales": 16 if is_symmetric else 8, "mins": 8}
    planes = {
        name: np.empty((num_blocks, widths.get(name, 1)), np.float16 if name[0] == "d" else np.uint8)
        for name in names[args.bits].split()
    }
    cdef uint8_t[:, ::1] codes, high, scales, mins
    cdef uint16_t[:, ::1] d, dmin
    if num_blocks:
        codes, scales, d = planes["codes"], planes["scales"], planes["d"].view(np.uint16)
        args.x, args.codes, args.scales, args.d = &x[0, 0], &codes[0, 0], &scales[0, 0], &d[0, 0]
        if args.bits > 4:
            high = planes["high"]
            args.high = &high[0, 0]
        if not is_symmetric:
            mins, dmin = planes["mins"], planes["dmin"].view(np.uint16)
            args.mins, args.dmin = &mins[0, 0], &dmin[0, 0]
        with nogil:
            run(&args, &step, 0, 1)
    if is_symmetric:
        planes["scales"] = planes["scales"].view(np.int8)
    return tuple(planes.values())
