"""sample on a GPU against the reference: the same ids for the same numbers, and what logprobs need."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from ftd.errors import EngineError
from ftd.kernels.logprobs_ref import logprobs
from ftd.kernels.sample_ref import sample as reference
from ftd.kernels.sample_rows import (
    CHUNKS,
    MAX_HISTORY,
    NUM_PARAMETERS,
    REJECTED,
    candidates_needed,
    fill_row,
    supports,
)
from ftd.kernels.sample_triton import Sampled, sample, sample_into, workspace_len
from tests.kernels import test_sample

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter


@dataclass(frozen=True)
class Params(test_sample.Params):
    """The same with as few candidates as the kernels take."""

    top_k: int = 40


def launch(
    logits: Any,
    rows: list[Params],
    history: Any,
    uniforms: Any,
    device: str,
    num_candidates: int | None = None,
) -> Sampled:
    """Return what the kernels sample."""
    parameters = np.zeros((len(rows), NUM_PARAMETERS))
    histories = np.full((len(rows), MAX_HISTORY), -1, np.int32)
    for i, params in enumerate(rows):
        assert supports(params)
        fill_row(parameters[i], histories[i], params, history[i], uniforms[i], logits.shape[1])
    count = num_candidates or max(candidates_needed(params) for params in rows)
    length = workspace_len(len(rows), logits.shape[1], count)
    return sample_into(
        *(torch.from_numpy(each).to(device) for each in (logits, parameters, histories)),
        count,
        out=Sampled.empty(len(rows), count, device),
        workspace=torch.empty(length, dtype=torch.int32, device=device),
    )


def random_params(rng: np.random.Generator, most: int) -> Params:
    """Return parameters that the kernels support, with up to ``most`` candidates."""
    return Params(
        temperature=float(rng.choice([0.0, 0.1, 0.8, 1.0, 2.5])),
        top_k=int(rng.choice([1, 2, 7, 40, most])),
        top_p=float(rng.choice([0.0, 0.13, 0.5, 0.9, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.4, 1.0])),
        repeat_last_n=int(rng.choice([0, 1, 5, 64, 256])),
        repeat_penalty=float(rng.choice([1.0, 1.3, 0.8])),
        presence_penalty=float(rng.choice([0.0, 0.5])),
        frequency_penalty=float(rng.choice([0.0, 0.25])),
    )


@pytest.mark.parametrize(
    ("vocab_size", "most"),
    [
        (1, 40),
        (37, 64),
        (5000, 64),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((20000, 64), (9001, 256))),
    ],
)
def test_equals_the_reference(vocab_size: int, most: int, rng: np.random.Generator, device: str) -> None:
    count = 10
    logits = rng.standard_normal((count, vocab_size), np.float32) * 4
    rows = [random_params(rng, most) for _ in range(count)]
    history = [rng.integers(0, min(vocab_size, 300), rng.integers(0, 400), np.int32) for _ in rows]
    uniforms = rng.random(count)
    actual = launch(logits, rows, history, uniforms, device)
    expected = [reference(*each) for each in zip(logits, rows, history, uniforms, strict=True)]
    assert actual.ids.tolist() == expected
    assert actual.logits.tolist() == [row[i] for row, i in zip(logits, expected, strict=True)]


def test_takes_what_the_reference_takes(rng: np.random.Generator, device: str) -> None:
    logits = rng.standard_normal(5000, np.float32) * 4
    on_device = torch.from_numpy(logits).to(device)
    for _ in range(6):
        arguments = random_params(rng, 64), rng.integers(0, 300, 90, np.int32), float(rng.random())
        assert sample(on_device, *arguments) == reference(logits, *arguments)
    none = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="uniform must lie in 0 to 1"):
        sample(on_device, Params(), none, 1.0)
    with pytest.raises(ValueError, match="top_k must lie in 1 to 256"):
        sample(on_device, Params(top_k=0), none, 0.5)
    on_device[7] = torch.nan
    with pytest.raises(EngineError, match="largest is nan"):
        sample(on_device, Params(), none, 0.5)


def test_ties_take_lower_ids_first(rng: np.random.Generator, device: str) -> None:
    logits = rng.integers(-3, 2, (12, 5000)).astype(np.float32)
    logits[3] = -0.0
    logits[3, 1::2] = 0.0
    rows = [
        Params(temperature=t, top_k=k, top_p=p) for t in (0.0, 1.0) for k in (3, 64) for p in (0.3, 0.5, 1)
    ]
    uniforms = rng.random(12)
    uniforms[3] = uniforms[9] = 0.0
    none = [np.zeros(0, np.int32)] * 12
    actual = launch(logits, rows, none, uniforms, device)
    assert actual.ids.tolist() == [
        reference(*each) for each in zip(logits, rows, none, uniforms, strict=True)
    ]


@pytest.mark.parametrize("num_candidates", CHUNKS)
def test_candidates_and_logsumexp_are_those_of_logprobs(
    num_candidates: int, rng: np.random.Generator, device: str
) -> None:
    logits = rng.integers(-40, 30, (2, 10001)).astype(np.float32) / 4
    logits[0, 5:8000] = -np.inf
    rows = [Params(temperature=0.0)] * 2
    none = [np.zeros(0, np.int32)] * 2
    actual = launch(logits, rows, none, [0.0, 0.0], device, num_candidates=num_candidates)
    for i, row in enumerate(logits):
        value, top = logprobs(row, int(actual.ids[i]), num_candidates)
        assert actual.candidate_ids[i].tolist() == [token for token, _ in top]
        got = actual.candidates[i].cpu().numpy() - actual.logsumexp[i].item()
        np.testing.assert_allclose(got, [each for _, each in top], atol=1e-5)
        assert actual.logits[i].item() - actual.logsumexp[i].item() == pytest.approx(value, abs=1e-5)


def test_fewer_ids_than_candidates(device: str) -> None:
    logits = np.array([[1.0, 3.0, 2.0]], np.float32)
    actual = launch(logits, [Params(top_k=50)], [np.zeros(0, np.int32)], [0.999], device)
    assert actual.ids.tolist() == [2]
    assert actual.candidate_ids[0, :4].tolist() == [1, 2, 0, -1]
    assert actual.candidates[0, :4].tolist() == [3, 2, 1, -np.inf]


def test_penalties_count_repeats_within_their_window(device: str) -> None:
    logits = np.full((4, 5000), -9.0, np.float32)
    logits[:, [7, 4100, 4101]] = [5.0, 4.9, 4.8]
    history = [np.array([4100, 7, 7], np.int32)] * 4
    greedy = Params(temperature=0.0, frequency_penalty=0.06)
    rows = [
        replace(greedy, repeat_last_n=0),
        replace(greedy, repeat_last_n=2),
        replace(greedy, frequency_penalty=0.11),
        replace(greedy, frequency_penalty=0.0, repeat_penalty=1e4),
    ]
    assert launch(logits, rows, history, [0.0] * 4, device).ids.tolist() == [7, 4100, 4101, 4101]


def test_what_is_not_finite_is_rejected(rng: np.random.Generator, device: str) -> None:
    logits = rng.standard_normal((5, 5000), np.float32)
    logits[0, 4500], logits[1, 3], logits[2] = np.nan, np.inf, -np.inf
    logits[3, 9] = 1e38
    rows = [Params(), Params(temperature=0.0), Params(), Params(repeat_penalty=1e-4), Params(top_k=1)]
    history = [np.array([9], np.int32)] * 5
    actual = launch(logits, rows, history, [0.5] * 5, device)
    assert actual.ids.tolist() == [REJECTED] * 4 + [int(logits[4].argmax())]


def test_given_memory_is_used_for_columns_of_a_wider_buffer(rng: np.random.Generator, device: str) -> None:
    wide = torch.from_numpy(rng.standard_normal((3, 700), np.float32)).to(device)
    parameters = np.zeros((3, NUM_PARAMETERS))
    histories = np.full((3, MAX_HISTORY), -1, np.int32)
    for i in range(3):
        fill_row(parameters[i], histories[i], Params(temperature=0.0), histories[i], 0.0, 600)
    out = Sampled.empty(3, 1, device)
    workspace = torch.full((workspace_len(3, 600, 1) + 5,), 77, dtype=torch.int32, device=device)
    arrays = (torch.from_numpy(parameters).to(device), torch.from_numpy(histories).to(device))
    assert sample_into(wide[:, 50:650], *arrays, 1, out=out, workspace=workspace) is out
    assert out.ids.tolist() == wide[:, 50:650].argmax(dim=1).tolist()
    assert (workspace[-5:] == 77).all()


@pytest.mark.parametrize(
    ("params", "num_logprobs", "expected"),
    [
        (Params(top_k=256), 256, 256),
        (Params(top_k=257), -1, None),
        (Params(top_k=0), -1, None),
        (Params(temperature=0.0, top_k=0, typical_p=0.3), 20, 64),
        (Params(temperature=0.0, top_k=500), -1, 1),
        (Params(typical_p=0.9), -1, None),
        (Params(repeat_penalty=1.1), 0, 64),
        (Params(repeat_penalty=1.1), 1, None),
        (Params(repeat_penalty=1.1, repeat_last_n=-1), -1, None),
        (Params(repeat_penalty=1.1, repeat_last_n=257), -1, None),
        (Params(repeat_last_n=-1), 257, None),
        (Params(repeat_last_n=-1), -1, 64),
    ],
)
def test_supports(params: Params, num_logprobs: int, expected: int | None) -> None:
    assert supports(params, num_logprobs) == (expected is not None)
    assert expected is None or candidates_needed(params, num_logprobs) == expected


def test_refuses() -> None:
    rest = (
        torch.zeros((1, NUM_PARAMETERS), dtype=torch.float64),
        torch.zeros((1, MAX_HISTORY), dtype=torch.int32),
    )
    memory = {"out": Sampled.empty(1, 1, "cpu"), "workspace": torch.zeros(99, dtype=torch.int32)}
    with pytest.raises(ValueError, match="num_candidates must be one of"):
        sample_into(torch.zeros(1, 5), *rest, 2, **memory)
    with pytest.raises(ValueError, match="logits must hold 1 to"):
        sample_into(torch.zeros(1, 0), *rest, 1, **memory)
    with pytest.raises(ValueError, match="workspace must hold"):
        sample_into(torch.zeros(1, 5), *rest, 1, **memory | {"workspace": memory["workspace"][:1]})
    with pytest.raises(ValueError, match="parameters must be float64"):
        sample_into(torch.zeros(1, 5), rest[0].float(), rest[1], 1, **memory)
