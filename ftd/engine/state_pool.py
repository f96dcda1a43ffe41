"""The memory of recurrent states: one array of slots for each state of each recurrent layer, allocated once.

Which slot belongs to whom is the business of ``slots``; this module only owns the bytes. Memory is reserved,
not touched: the system commits a slot when a sequence first writes into it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ftd.engine.recurrent_config import RecurrentConfig
from ftd.errors import OutOfMemory


class StatePool:
    """States by layer: ``conv[layer]`` [slots, K-1, C], ``delta[layer]`` [slots, Hv, Ck, Cv], both f32.

    ``make_pages(shape, dtype)`` allocates zeros where the model computes.
    """

    def __init__(
        self,
        config: RecurrentConfig,
        num_slots: int,
        make_pages: Callable[[tuple[int, ...], str], Any] = np.zeros,
    ) -> None:
        self.num_bytes = num_slots * config.state_bytes
        conv_shape = (num_slots, config.taps - 1, config.conv_size)
        delta_shape = (num_slots, config.value_heads, config.key_channels, config.value_channels)
        self.conv: dict[int, Any] = {}
        self.delta: dict[int, Any] = {}
        try:
            for layer in (layer for layer, is_recurrent in enumerate(config.layers) if is_recurrent):
                self.conv[layer] = make_pages(conv_shape, "float32")
                self.delta[layer] = make_pages(delta_shape, "float32")
        except MemoryError as exc:
            raise OutOfMemory(
                f"the system refused {self.num_bytes} bytes for {num_slots} recurrent states",
                "lower the number of parallel sequences",
            ) from exc

    def copy(self, source: int, target: int) -> None:
        """Make the state in slot ``target`` that of slot ``source``."""
        for states in (*self.conv.values(), *self.delta.values()):
            states[target] = states[source]
