"""The worker that runs experts for a card, rung from here as the card does, against the op on its rows."""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from examples import first_quick
from numpy.typing import NDArray

from ftd.engine.synthetic import SyntheticWeights
from ftd.kernels import _expert_ffn_cy
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

    def __init__(self, width: int = D, x_dtype: type = np.float32, tokens: int = TOKENS) -> None:
        self.words = np.zeros(48, np.int32)
        self.on_cpu = np.full((tokens, K), -1, np.int32)
        self.weights = np.zeros((tokens, K), np.float32)
        self.x = np.zeros((tokens, width), x_dtype)
        self.out = np.zeros((tokens, width), np.float32)

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


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("format_name", "width", "inner"), [("q4_0", 256, 96), ("q8_0", 128, 160), ("bf16", 200, 72)]
)
def test_any_number_of_threads_gives_the_bits_of_the_op(
    format_name: str, width: int, inner: int, num_threads: int, rng: np.random.Generator
) -> None:
    box, bank = Box(width, np.uint16), SyntheticWeights(format_name, 1).bank(0, E, width, inner)
    with Pool(num_threads) as pool:
        worker = ExpertWorker(pool, box.words, box.on_cpu, box.weights, box.x, box.out)
        worker.add(bank)
        worker.start()
        for tokens in (1, 1, 3, 1, 2, 1, 1, TOKENS):
            values = rng.standard_normal(box.x.shape).astype(np.float32)
            box.x[:] = values.view(np.uint32) >> 16
            x = floats(box.x)
            box.weights[:] = rng.random(box.weights.shape)
            ids = np.stack([rng.permutation(E)[:K] for _ in range(TOKENS)]).astype(np.int32)
            is_ours = rng.random(ids.shape) < 0.7
            box.on_cpu[:] = np.where(is_ours, ids, -1)
            box.out[:] = np.nan
            assert box.ring(tokens, 0) == box.words[BELL]
            weights = np.where(is_ours, box.weights, np.float32(0))
            wanted = _expert_ffn_cy.expert_ffn(x[:tokens], ids[:tokens], weights[:tokens], bank)
            np.testing.assert_array_equal(box.out[:tokens], wanted)
        assert worker.num_messages == 8
        worker.close()


@pytest.mark.parametrize("tokens", [40, 600, 4200])
def test_experts_of_many_rows(isa: str, rng: np.random.Generator, tokens: int) -> None:
    """As on a card, sums of many tokens are bfloat16, and where tiles of AMX compute hidden values too."""
    num_floats = 128
    box, bank = Box(64, np.uint16, 4200), SyntheticWeights("bf16", 1).bank(0, E, 64, F)
    many = np.zeros(box.x.shape, np.uint16)
    out = many.reshape(-1).view(np.float32)[: num_floats * 64].reshape(num_floats, 64)
    values = rng.standard_normal(box.x.shape).astype(np.float32)
    box.x[:] = values.view(np.uint32) >> 16
    box.weights[:] = rng.random(box.weights.shape)
    box.on_cpu[:] = np.stack([rng.permutation(E)[:K] for _ in range(len(box.x))])
    box.on_cpu[rng.random(box.on_cpu.shape) < 0.3] = -1
    box.on_cpu[box.on_cpu == 2] = np.where(
        np.arange(np.sum(box.on_cpu == 2)) < 5, 2, -1
    )  # too few for a tile
    with Pool(3) as pool:
        worker = ExpertWorker(pool, box.words, box.on_cpu, box.weights, box.x, out, many=many)
        worker.add(bank)
        worker.start()
        assert box.ring(tokens, 0) == 1
        worker.close()
    ids = np.maximum(box.on_cpu, 0)[:tokens]
    weights = np.where(box.on_cpu >= 0, box.weights, np.float32(0))[:tokens]
    wanted = expert_ffn(floats(box.x[:tokens]), ids, weights, bank)
    found = out[:tokens] if tokens <= num_floats else floats(many[:tokens])
    bound = 1e-5 if isa != "amx" and tokens <= num_floats else 2.0**-8
    assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()
    assert not many[max(tokens, 2 * num_floats) :].any()


def floats(bfloats: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the values of bfloat16."""
    return (bfloats.astype(np.uint32) << 16).view(np.float32)


def test_an_expert_that_is_none_is_answered_as_failed(box: Box) -> None:
    box.on_cpu[0, 1] = E
    assert box.ring(1, 0) == -1


@pytest.mark.parametrize(("tokens", "layer"), [(0, 0), (TOKENS + 1, 0), (1, 2), (1, -1)])
def test_a_message_that_cannot_be_is_answered_as_failed(box: Box, tokens: int, layer: int) -> None:
    assert box.ring(tokens, layer) == -1


def test_arrays_that_do_not_fit_are_refused(box: Box) -> None:
    with Pool(1) as pool, pytest.raises(ValueError, match="x and out"):
        ExpertWorker(pool, box.words, box.on_cpu, box.weights, box.x[:, :8], box.out)


@pytest.mark.parametrize("num_threads", first_quick(8, 2))
def test_threads_that_come_late_take_no_part_of_the_message_that_follows(num_threads: int) -> None:
    """The card writes a message before it rings: who reads the last one late finds more items than it had."""
    made, messages = Box(), ([3, 1, 2], [4, -1, -1])
    rng = np.random.default_rng(5)
    made.x[:] = rng.standard_normal(made.x.shape)
    made.weights[:] = rng.random(made.weights.shape)
    answers = []
    for message in messages:
        made.on_cpu[0] = message
        answers.append(expected(made, 0, 1))
    with Pool(num_threads) as pool:
        worker = ExpertWorker(pool, made.words, made.on_cpu, made.weights, made.x, made.out, "f32")
        worker.add(make_bank(0))
        worker.start()
        for number in range(1, 401):
            made.on_cpu[0] = messages[number % 2]
            os.sched_yield()  # to threads that are late: without the repair this found it each time
            assert made.ring(1, 0) == number
            assert np.abs(made.out[:1] - answers[number % 2]).max() <= 2e-6
        assert worker.num_messages == number
        worker.close()
