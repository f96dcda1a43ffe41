"""Measures how fast this machine reads memory: decode's yardstick, which reads each weight once a token."""

import statistics

import numpy as np

from ftd.kernels._bandwidth_cy import read_all
from ftd.kernels._pool import Pool

DEFAULT_BYTES = 512 * 2**20


def measure(num_threads: int = 0, num_bytes: int = DEFAULT_BYTES, passes: int = 5) -> float:
    """Return the median bytes per second of plain reads by ``num_threads`` threads (0: one a usable core).

    num_bytes   length of the buffer; far above the caches to measure memory
    passes      timed passes after one that is not timed
    Raises ValueError if there is nothing to measure.
    """
    if num_bytes < 8 or passes < 1:
        raise ValueError(f"num_bytes must be at least 8 and passes at least 1: {num_bytes} and {passes}")
    data = np.ones(num_bytes // 8, np.uint64)
    with Pool(num_threads) as pool:
        read_all(data, pool)
        return data.nbytes / (statistics.median(read_all(data, pool)[1] for _ in range(passes)) * 1e-9)
