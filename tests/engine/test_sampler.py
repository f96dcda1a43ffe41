"""Seeds, draws and bounds of the sampler; what the draw means is tested with the kernel."""

import numpy as np
import pytest

from ftd.engine.messages import SamplingParams
from ftd.engine.sampler import Sampler, uniform
from ftd.engine.sequence import Sequence
from ftd.errors import EngineError, InvalidOption


@pytest.fixture
def sampler() -> Sampler:
    """A sampler for eight ids."""
    return Sampler(8)


def sequence(sampler: Sampler, ids: list[int], prompt_len: int, sampling: SamplingParams) -> Sequence:
    """A sequence whose first ``prompt_len`` ids are its prompt."""
    made = Sequence.from_prompt(1, ids[:prompt_len], sampler_state=sampler.begin(sampling, -1))
    made.ids.extend(ids[prompt_len:])
    return made


def test_uniform_numbers_are_spread_evenly_and_differ_by_seed_and_count() -> None:
    numbers = np.array([[uniform(seed, count) for count in range(2000)] for seed in (0, 1, 2**64 - 1, -3)])
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    assert len(np.unique(numbers)) == numbers.size
    histogram = np.histogram(numbers, bins=16, range=(0, 1))[0]
    assert ((histogram - 500) ** 2 / 500).sum() < 37.7  # chi-square, 15 degrees, one in a thousand
    assert abs(np.corrcoef(numbers).ravel()[1]) < 0.08


# The first outputs of SplitMix64 from 1234567, as its author's and other generators give them
SPLITMIX = (
    *(6457827717110365317, 3203168211198807973, 9817491932198370423),
    *(4593380528125082431, 16408922859458223821),
)


def unmixed(value: int) -> int:
    """Return what SplitMix64 mixes into ``value``: each of its steps undone."""
    for factor, shift in ((None, 31), (0x94D049BB133111EB, 27), (0xBF58476D1CE4E5B9, 30)):
        if factor is not None:
            value = value * pow(factor, -1, 1 << 64) % (1 << 64)
        value ^= value >> shift ^ value >> 2 * shift
    return value


def test_uniform_numbers_are_those_of_splitmix64() -> None:
    """A seed is mixed once, so that seeds 1, 2, 3 lie far apart; from there it is the generator."""
    seed = unmixed(1234567)
    assert [uniform(seed, count) for count in range(5)] == [(bits >> 11) / 2**53 for bits in SPLITMIX]


def test_the_draw_depends_on_the_seed_and_the_number_of_output_tokens_only(sampler: Sampler) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)
    logits = np.zeros(8, np.float32)
    drawn = [
        sampler.sample(logits, sequence(sampler, list(range(length)), length - 2, sampling))
        for length in (3, 5, 8)
    ]
    assert drawn == [int(uniform(3, 2) * 8)] * 3
    counts = [sampler.sample(logits, sequence(sampler, [1] * n, 1, sampling)) for n in range(1, 30)]
    assert len(set(counts)) > 4


def test_a_request_without_a_seed_gets_one_of_its_own(sampler: Sampler) -> None:
    seeds = {sampler.begin(SamplingParams(), -1).seed for _ in range(4)}
    assert len(seeds) == 4


def test_penalties_see_prompt_and_output(sampler: Sampler) -> None:
    sampling = SamplingParams(temperature=0.0, presence_penalty=5.0, repeat_last_n=2)
    logits = np.array([0, 3, 2, 1, 0, 0, 0, 0], np.float32)
    chosen = [sampler.sample(logits, sequence(sampler, ids, 1, sampling)) for ids in ([1], [1, 2], [1, 2, 4])]
    assert chosen == [2, 3, 1]


def test_large_numbers_are_cut_to_what_they_mean(sampler: Sampler) -> None:
    sampling = SamplingParams(temperature=0.0, top_k=2**63 - 1, repeat_last_n=-(2**63), presence_penalty=1.0)
    assert sampler.sample(np.arange(8, dtype=np.float32), sequence(sampler, [7], 1, sampling)) == 6
    assert sampler.begin(sampling, -1).params.top_k == 8


@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9])
def test_impossible_numbers_are_refused_by_name(sampler: Sampler, name: str, value: float) -> None:
    with pytest.raises(InvalidOption, match=name):
        sampler.begin(SamplingParams(**{name: value}), -1)


@pytest.mark.parametrize("num_logprobs", [-2, 1025, 2**40])
def test_too_many_logprobs_are_refused(sampler: Sampler, num_logprobs: int) -> None:
    with pytest.raises(InvalidOption, match=str(num_logprobs)):
        sampler.begin(SamplingParams(), num_logprobs)


def test_logprobs_are_sorted_and_before_any_filter(sampler: Sampler) -> None:
    logits = np.log(np.array([1, 2, 3, 4, 10, 0.5, 0.25, 0.25], np.float32))
    entry = sampler.logprob(logits, 2, 2)
    assert (entry.id, [token for token, _ in entry.top]) == (2, [4, 3])
    np.testing.assert_allclose([entry.logprob, entry.top[0][1]], np.log([3 / 21, 10 / 21]), rtol=1e-5)


@pytest.mark.parametrize("num_allowed", [1, 2, 30, 700, 2048, 2049, 3000])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"top_k": 0, "top_p": 1.0},
        {"top_k": 5, "min_p": 0.1},
        {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repeat_last_n": 20},
        {"repeat_penalty": 1.5, "repeat_last_n": -1},
        {"frequency_penalty": 2.0, "repeat_last_n": -1},
        {"frequency_penalty": 2.0, "repeat_last_n": 500},
        {"repeat_penalty": 1.5, "repeat_last_n": 0},
    ],
)
def test_forbidden_ids_are_as_if_their_logits_were_minus_infinity(
    num_allowed: int, fields: dict[str, float]
) -> None:
    sampler, random = Sampler(3000), np.random.default_rng(num_allowed)
    for seed in range(10):
        logits = random.standard_normal(3000).astype(np.float32) * 3
        allowed = np.zeros(3000, np.bool_)
        allowed[random.permutation(3000)[:num_allowed]] = True
        sampling = SamplingParams(seed=seed, **fields)  # type: ignore[arg-type]
        # a history of allowed and forbidden ids, some more than once
        ids = np.concatenate((np.flatnonzero(allowed)[:20], random.integers(0, 3000, 20))).tolist() * 2
        made = sequence(sampler, ids, 10, sampling)
        masked = np.where(allowed, logits, np.float32(-np.inf))
        before = logits.copy()
        assert sampler.sample(logits, made, allowed) == sampler.sample(masked, made)
        assert (logits == before).all()


def test_nothing_allowed_is_an_error(sampler: Sampler) -> None:
    made = sequence(sampler, [1, 2], 1, SamplingParams(seed=1))
    with pytest.raises(EngineError, match="no token is allowed next"):
        sampler.sample(np.zeros(8, np.float32), made, np.zeros(8, np.bool_))
