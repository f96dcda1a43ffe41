"""Choosing on a card, or in Triton's interpreter, against choosing on the host: the same ids and logprobs."""

import numpy as np
import pytest
import torch

from ftd.engine import devices
from ftd.engine.batch import Batch, Entry
from ftd.engine.choosing import HostChooser
from ftd.engine.device_chooser import DeviceChooser
from ftd.engine.messages import SamplingParams
from ftd.engine.sampler import Sampler
from ftd.engine.sequence import Sequence

DEVICE = "cpu" if devices.missing_for_cuda() else "cuda"
VOCAB = 97
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=1),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.05, seed=2),
    SamplingParams(temperature=0.7, top_k=20, repeat_penalty=1.3, repeat_last_n=4, seed=3),
)


class Logits:
    """As much of a model as the host's chooser looks at."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits


def sequences(params: tuple[SamplingParams, ...], num_logprobs: int = -1) -> list[Sequence]:
    sampler = Sampler(VOCAB)
    found = []
    for number, each in enumerate(params):
        sequence = Sequence.from_prompt(number, [number + 1, 5, 9, 5])
        sequence.sampler_state, sequence.num_logprobs = sampler.begin(each, num_logprobs), num_logprobs
        found.append(sequence)
    return found


def on_device(logits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(logits.astype(np.float32)).to(DEVICE)


def batch_of(found: list[Sequence]) -> Batch:
    return Batch(tuple(Entry(each, len(each.ids) - 1, 1, True) for each in found))


def test_both_choose_the_same_ids_step_by_step() -> None:
    rng, found = np.random.default_rng(0), sequences(PARAMS)
    on_card, on_host = DeviceChooser(VOCAB, 6, DEVICE), HostChooser(Sampler(VOCAB), VOCAB)
    for _ in range(4):
        logits = (3 * rng.standard_normal((len(found), VOCAB))).astype(np.float32)
        wanted = on_host.choose(batch_of(found), Logits(logits)).ids
        assert on_card.launch(found, on_device(logits), 0)().ids == wanted
        assert on_card.ids is not None and on_card.ids[: len(found)].tolist() == wanted
        for sequence, token in zip(found, wanted, strict=True):
            sequence.ids.append(token)


def test_an_id_that_the_host_does_not_know_yet_counts_for_the_number_that_is_drawn() -> None:
    rng, (known,) = np.random.default_rng(1), sequences(PARAMS[1:2])
    (behind,) = sequences(PARAMS[1:2])
    known.ids.append(7)
    chooser = DeviceChooser(VOCAB, 1, DEVICE)
    for _ in range(8):
        logits = on_device(rng.standard_normal((1, VOCAB)))
        assert chooser.launch([behind], logits, 1)().ids == chooser.launch([known], logits, 0)().ids


def test_logprobs_are_those_of_the_host_though_the_next_step_has_begun() -> None:
    rng, found = np.random.default_rng(2), sequences(PARAMS[:2], num_logprobs=3)
    on_card, on_host = DeviceChooser(VOCAB, 2, DEVICE), HostChooser(Sampler(VOCAB), VOCAB)
    logits = rng.standard_normal((2, VOCAB)).astype(np.float32)
    wait = on_card.launch(found, on_device(logits), 0)
    on_card.launch(found, on_device(np.zeros((2, VOCAB))), 0)
    wanted, got = on_host.choose(batch_of(found), Logits(logits)).logprobs, wait().logprobs
    assert got.keys() == wanted.keys() == {0, 1}
    for number, logprob in wanted.items():
        assert got[number].id == logprob.id
        assert got[number].logprob == pytest.approx(logprob.logprob, abs=2e-6)
        assert [token for token, _ in got[number].top] == [token for token, _ in logprob.top]
        assert [value for _, value in got[number].top] == pytest.approx(
            [value for _, value in logprob.top], abs=2e-6
        )


def test_a_row_that_is_not_finite_fails_alone() -> None:
    found = sequences(PARAMS[:2])
    logits = np.ones((2, VOCAB))
    logits[1, 3] = np.nan
    choices = DeviceChooser(VOCAB, 2, DEVICE).launch(found, on_device(logits), 0)()
    assert list(choices.failures) == [1]
    assert choices.ids[1] == 0 and choices.ids[0] in range(VOCAB)


@pytest.mark.parametrize(
    ("params", "served"),
    [
        (SamplingParams(temperature=0.0, top_k=0), True),
        (SamplingParams(temperature=1.0, top_k=256), True),
        (SamplingParams(temperature=1.0, top_k=0), False),
        (SamplingParams(temperature=1.0, top_k=40, typical_p=0.5), False),
    ],
)
def test_what_a_card_does_not_serve_is_said(params: SamplingParams, served: bool) -> None:
    (sequence,) = sequences((params,))
    assert DeviceChooser(VOCAB, 1, DEVICE).supports(batch_of([sequence])) is served
    assert not DeviceChooser(VOCAB, 1, DEVICE).supports(Batch(()))
