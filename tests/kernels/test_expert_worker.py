"""The worker that runs experts for a card, rung from here as the card does, against the op on its rows."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.kernels._expert_worker_cy import ExpertWorker
from ftd.kernels._pool import Pool
from ftd.kernels.expert_ffn_ref import expert_ffn
from ftd.kernels.quant import BankMatrix, ExpertBank

E, K, D, F, TOKENS = 6, 3, 64, 32, 4
BELL, TOKENS_WORD, LAYER, DONE = 0, 1, 2, 16
ANSWER_S = 10.0


def make_bank(layer: int) -> ExpertBank:
    """A bank of f32 experts."""
    sizes = {"gate_up": (2 * F, D), "down": (D, F)}
    rng = np.random.default_rng(layer)
    values = rng.standard_normal((E, 3 * F * D)).astype(np.float32) * np.float32(0.1)
    records = values.view(np.uint8)
    offsets = {"gate_up": (0,), "down": (8 * F * D,)}
    matrices = {role: BankMatrix(records, "f32", sizes[role], offsets[role]) for role in sizes}
    return ExpertBank(layer, records, matrices)


class Box:
    """A mailbox in plain memory, and the side of the card."""

    def __init__(self) -> None:
        self.words = np.zeros(48, np.int32)
        self.on_cpu = np.full((TOKENS, K), -1, np.int32)
        self.weights = np.zeros((TOKENS, K), np.float32)
        self.x = np.zeros((TOKENS, D), np.float32)
        self.out = np.zeros((TOKENS, D), np.float32)

    def ring(self, tokens: int, layer: int) -> int:
        """Send what lies in the arrays and return the answer."""
        number = int(self.words[BELL]) + 1
        self.words[TOKENS_WORD], self.words[LAYER] = tokens, layer
        self.words[BELL] = number
        end = time.monotonic() + ANSWER_S
        while self.words[DONE] not in (number, -1) and time.monotonic() < end:
            pass
        return int(self.words[DONE])


@pytest.fixture
def box() -> Iterator[Box]:
    """A mailbox that a worker of two layers answers."""
    made = Box()
    with Pool(2) as pool:
        worker = ExpertWorker(pool, made.words, made.on_cpu, made.weights, made.x, made.out, "f32")
        for layer in range(2):
            worker.add(make_bank(layer))
        worker.start()
        yield made
        worker.close()


def expected(box: Box, layer: int, tokens: int) -> NDArray[np.float32]:
    """The op on the experts that are to run, others at weight 0."""
    ids = np.maximum(box.on_cpu[:tokens], 0)
    weights = np.where(box.on_cpu[:tokens] >= 0, box.weights[:tokens], np.float32(0))
    return expert_ffn(box.x[:tokens], ids, weights, make_bank(layer), precision="f32")


@pytest.mark.parametrize(("layer", "tokens"), [(0, 1), (1, 4)])
def test_it_computes_what_it_is_asked_and_nothing_else(box: Box, layer: int, tokens: int) -> None:
    rng = np.random.default_rng(5)
    box.x[:] = rng.standard_normal(box.x.shape)
    box.weights[:] = rng.random(box.weights.shape)
    box.on_cpu[:] = [[2, -1, 5], [-1, -1, 2], [-1, -1, -1], [0, 1, 2]]
    assert box.ring(tokens, layer) == 1
    np.testing.assert_allclose(box.out[:tokens], expected(box, layer, tokens), atol=2e-6)
    box.on_cpu[0] = [1, 4, -1]
    assert box.ring(tokens, layer) == 2
    np.testing.assert_allclose(box.out[:tokens], expected(box, layer, tokens), atol=2e-6)


@pytest.mark.parametrize(("tokens", "layer"), [(0, 0), (TOKENS + 1, 0), (1, 2), (1, -1)])
def test_a_message_that_cannot_be_is_answered_as_failed(box: Box, tokens: int, layer: int) -> None:
    assert box.ring(tokens, layer) == -1


def test_arrays_that_do_not_fit_are_refused(box: Box) -> None:
    with Pool(1) as pool, pytest.raises(ValueError, match="x and out"):
        ExpertWorker(pool, box.words, box.on_cpu, box.weights, box.x[:, :8], box.out)
