"""Which program takes which of a step's prompts: lists made on the host, from lengths that it knows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer keys than this are not worth another program.
SPLIT_KEYS = 128
# Keys that a block must be rid of before it shares any: a merge takes as long as three to four tiles of 64.
LEAST_GAIN = 256


@dataclass(frozen=True, slots=True)
class Spread:
    """How a step's prompts are shared out to programs.

    tokens    neighbouring tokens of a sequence that make a block
    programs  so many are wanted for each group of heads; fewer blocks share out their keys
    window    keys that a token sees at most; 0: all
    """

    tokens: int
    programs: int = 1
    window: int = 0

    def most(self, num_tokens: int, num_sequences: int) -> int:
        """Return the rows of ``prefill_blocks`` that a step of these sizes may have."""
        return max(min(num_tokens, num_tokens // self.tokens + num_sequences), self.programs)


def prefill_blocks(
    q_start: NDArray[np.int32], kv_len: NDArray[np.int32], spread: Spread, first_sequence: int = 0
) -> NDArray[np.int32]:
    """Return [n, 4] i32: sequence, first row, share and number of shares, from ``first_sequence`` on.

    q_start  [B + 1] i32   first row of each sequence
    kv_len   [B] i32       keys of each sequence, those of the step included

    Blocks that see more keys come first: the last programs to start are short. A block's shares lie together.
    """
    blocks = []
    for sequence in range(first_sequence, len(q_start) - 1):
        end = int(q_start[sequence + 1])
        for first in range(int(q_start[sequence]), end, spread.tokens):
            keys = int(kv_len[sequence]) - max(0, end - first - spread.tokens)
            if spread.window:
                keys = min(keys, spread.window + spread.tokens - 1)
            blocks.append((keys, sequence, first))
    blocks.sort(key=lambda block: -block[0])
    share = _share([keys for keys, _, _ in blocks], spread.programs)
    shares = [-(-keys // share) for keys, _, _ in blocks]
    rows = [
        (sequence, first, part, count)
        for (_, sequence, first), count in zip(blocks, shares, strict=True)
        for part in range(count)
    ]
    return np.array(rows, np.int32).reshape(-1, 4)


def _share(keys: list[int], programs: int) -> int:
    """Return the keys that a program takes of blocks that see ``keys``, longest first: all or a part."""
    longest = max(keys, default=1)
    if len(keys) >= programs:
        return longest
    least, most = SPLIT_KEYS, max(SPLIT_KEYS, longest)
    while least < most:
        middle = (least + most) // 2
        if sum(-(-each // middle) for each in keys) <= programs:
            most = middle
        else:
            least = middle + 1
    return least if longest - least >= LEAST_GAIN else longest
