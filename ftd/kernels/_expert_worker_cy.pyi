from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool
from ftd.kernels.quant import ExpertBank

class ExpertWorker:
    def __init__(
        self,
        pool: Pool,
        words: NDArray[np.int32],
        on_cpu: NDArray[np.int32],
        weights: NDArray[np.float32],
        x: NDArray[Any],
        out: NDArray[np.float32],
        precision: str = "fast",
        many: NDArray[np.uint16] | None = None,
    ) -> None: ...
    def add(self, bank: ExpertBank, activation: str = "silu", limit: float = 7.0) -> None: ...
    def start(self) -> None: ...
    @property
    def num_messages(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...
    def stall(self, stalled: bool = True) -> None: ...
    def close(self) -> None: ...
