"""sample: the reference against a chain written link by link, the compiled version against the reference.

The chain here follows llama.cpp's samplers as lists of (id, logit): sorted, cut and renormalised in turn.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.errors import EngineError
from ftd.kernels._sample_cy import sample as compiled
from ftd.kernels.sample_ref import probabilities
from ftd.kernels.sample_ref import sample as reference

Get = Callable[[str], Callable[..., Any]]


@dataclass(frozen=True)
class Params:
    """Every link off, unless a test says otherwise."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


NO_HISTORY = np.zeros(0, np.int32)
DEFAULT = Params(temperature=0.8, top_k=40, top_p=0.9)

params = st.builds(
    Params,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 0, 1, 2, 7, 40, 10**9]),
    top_p=st.sampled_from([0.0, 0.13, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    typical_p=st.sampled_from([0.0, 0.2, 0.77, 1.0]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 5, 64]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25]),
)
sizes = st.sampled_from([1, 2, 3, 63, 64, 65, 130, 1500])


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def take_until(order: list[int], p: list[float], limit: float, strict: bool) -> list[int]:
    total, kept = 0.0, []
    for place in order:
        kept.append(place)
        total += p[place]
        if total > limit or (total == limit and not strict):
            break
    return kept


def chain(logits: Any, options: Params, history: list[int]) -> dict[int, float]:
    """Return id -> probability as llama.cpp's chain computes it."""
    x = {token: float(value) for token, value in enumerate(logits)}
    last = history[-options.repeat_last_n :] if options.repeat_last_n > 0 else history
    for token, count in Counter(last if options.repeat_last_n else []).items():
        x[token] = x[token] * options.repeat_penalty if x[token] <= 0 else x[token] / options.repeat_penalty
        x[token] -= count * options.frequency_penalty + options.presence_penalty
        x[token] = float(np.float32(x[token]))
    left = sorted(x.items(), key=lambda item: (-item[1], item[0]))
    if options.temperature <= 0:
        return {left[0][0]: 1.0}
    if options.top_k > 0:
        left = left[: options.top_k]
    if options.typical_p < 1:
        p = softmax([value for _, value in left])
        entropy = -math.fsum(q * math.log(q) for q in p if q > 0)
        order = sorted(range(len(p)), key=lambda i: abs(-math.log(p[i]) - entropy) if p[i] else math.inf)
        left = [left[i] for i in sorted(take_until(order, p, options.typical_p, True))]
    if options.top_p < 1:
        p = softmax([value for _, value in left])
        left = [left[i] for i in take_until(list(range(len(p))), p, options.top_p, False)]
    if options.min_p > 0:
        bound = left[0][1] + math.log(options.min_p)
        left = left[:1] + [item for item in left[1:] if item[1] >= bound]
    p = softmax([value / options.temperature for _, value in left])
    return {token: q for (token, _), q in zip(left, p, strict=True)}


def draw_logits(size: int, seed: int, whole: bool) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(size, np.float32) * 4
    return np.round(values) if whole else values


@given(params, sizes, st.integers(0, 2**32 - 1))
@settings(max_examples=examples(150))
def test_reference_is_llama_cpps_chain(options: Params, size: int, seed: int) -> None:
    logits = draw_logits(size, seed, whole=False)
    history = np.random.default_rng(seed).integers(0, size, 20).astype(np.int32)
    expected = chain(logits, options, history.tolist())
    actual = probabilities(logits, options, history)
    assert set(np.flatnonzero(actual).tolist()) == {token for token, p in expected.items() if p > 0}
    for token, p in expected.items():
        assert actual[token] == pytest.approx(p, rel=1e-9)


@given(params, sizes, st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=examples(200))
def test_compiled_chooses_as_the_reference(options: Params, size: int, seed: int, whole: bool) -> None:
    """The outcome is always within the allowed set; among equal logits (``whole``) lower ids come first."""
    logits = draw_logits(size, seed, whole)
    rng = np.random.default_rng(seed)
    history = rng.integers(0, size, 20).astype(np.int32)
    p = probabilities(logits, options, history)
    for uniform in (0.0, *rng.random(5), math.nextafter(1.0, 0.0)):
        token = compiled(logits, options, history, uniform)
        assert p[token] > 0
        edge = np.abs(np.cumsum(p) - uniform * p.sum()).min() < 1e-6
        assert edge or token == reference(logits, options, history, uniform)


@pytest.mark.parametrize(
    "options",
    [
        DEFAULT,
        Params(),
        Params(temperature=1.7, min_p=0.02),
        Params(typical_p=0.8, top_k=30),
        Params(top_p=0.7, repeat_penalty=1.4, presence_penalty=0.2, frequency_penalty=0.1),
    ],
)
def test_draws_follow_the_reference_distribution(isa: str, options: Params) -> None:
    """Chi-square of 8,000 draws, cells under 5 expected draws merged: below mean + 5 standard deviations."""
    rng = np.random.default_rng(5)
    logits = rng.standard_normal(200, np.float32) * 2
    history = rng.integers(0, 200, 30).astype(np.int32)
    p = probabilities(logits, options, history)
    draws = [compiled(logits, options, history, uniform) for uniform in rng.random(8_000)]
    seen, wanted = np.bincount(draws, minlength=200), p / p.sum() * len(draws)
    assert not seen[p == 0].any()
    small = wanted < 5
    seen = np.append(seen[~small], seen[small].sum())
    wanted = np.append(wanted[~small], wanted[small].sum())
    used = wanted > 0
    square = ((seen[used] - wanted[used]) ** 2 / wanted[used]).sum()
    freedom = max(1, int(used.sum()) - 1)
    assert square < freedom + 5 * math.sqrt(2 * freedom)


def test_greedy_takes_the_lowest_id_among_equals(get: Get) -> None:
    logits = np.zeros(300, np.float32)
    logits[[290, 70, 130]] = 5
    assert get("sample")(logits, Params(temperature=0), NO_HISTORY, 0.99) == 70


def test_top_k_keeps_the_lowest_ids_among_equals(get: Get) -> None:
    logits = np.zeros(300, np.float32)
    drawn = {get("sample")(logits, Params(top_k=3), NO_HISTORY, uniform) for uniform in (0.0, 0.4, 0.999999)}
    assert drawn == {0, 1, 2}


def test_forbidden_tokens_are_never_drawn(get: Get) -> None:
    logits = np.full(200, -np.inf, np.float32)
    logits[[3, 199]] = [0.0, 1.0]
    for options in (
        DEFAULT,
        Params(),
        Params(typical_p=0.9),
        Params(temperature=50.0),
        Params(temperature=0),
    ):
        drawn = {get("sample")(logits, options, NO_HISTORY, uniform) for uniform in (0.0, 0.5, 1 - 2**-53)}
        assert drawn <= {3, 199}


def test_penalties_look_at_the_last_tokens_only(get: Get) -> None:
    logits = np.array([4.0, 3.0, -1.0], np.float32)
    history = np.array([1, 1, 0, 2], np.int32)
    for last, expected in ((0, 0), (1, 0), (2, 1), (3, 0), (4, 0), (-1, 0), (1000, 0)):
        options = Params(temperature=0, repeat_last_n=last, frequency_penalty=2.0)
        assert get("sample")(logits, options, history, 0.5) == expected


def test_penalty_pushes_negative_logits_down(get: Get) -> None:
    logits = np.array([-1.0, -1.05], np.float32)
    options = Params(temperature=0, repeat_penalty=1.1)
    assert get("sample")(logits, options, np.array([0], np.int32), 0.5) == 1


def test_same_number_same_token(get: Get, rng: np.random.Generator) -> None:
    logits = rng.standard_normal(49152, np.float32) * 3
    numbers = rng.random(20)
    first = [get("sample")(logits, DEFAULT, NO_HISTORY, number) for number in numbers]
    get("sample")(logits[:100], Params(), NO_HISTORY, 0.5)
    assert [get("sample")(logits, DEFAULT, NO_HISTORY, number) for number in numbers] == first
    assert len(set(first)) > 1


@pytest.mark.parametrize("place", [0, 63, 64, 149])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("options", [DEFAULT, Params(), Params(temperature=0), Params(repeat_penalty=1.2)])
def test_logits_that_are_not_finite_are_an_error(get: Get, place: int, value: float, options: Params) -> None:
    logits = np.zeros(150, np.float32)
    logits[place] = value
    with pytest.raises(EngineError, match=f"not finite: largest is {value}"):
        get("sample")(logits, options, np.array([5], np.int32), 0.5)


def test_nothing_allowed_is_an_error(get: Get) -> None:
    with pytest.raises(EngineError, match="largest is -inf"):
        get("sample")(np.full(70, -np.inf, np.float32), DEFAULT, NO_HISTORY, 0.5)


@pytest.mark.parametrize("temperature", [1e-300, 1e-10, 1e300])
def test_extreme_temperatures_are_limits(get: Get, temperature: float) -> None:
    logits = np.array([1.0, 2.0, 1.5], np.float32)
    for top_k in (0, 2):
        options = Params(temperature=temperature, top_k=top_k)
        drawn = {get("sample")(logits, options, NO_HISTORY, uniform) for uniform in (0.01, 0.99)}
        assert drawn == ({1} if temperature < 1 else {0, 2} if top_k == 0 else {1, 2})


@pytest.mark.parametrize(
    ("options", "history", "uniform", "message"),
    [
        (Params(repeat_penalty=0.0), [], 0.5, "repeat_penalty must be finite and above 0, got 0.0"),
        (Params(temperature=math.nan), [], 0.5, "temperature must be finite, got nan"),
        (Params(top_p=math.inf), [], 0.5, "top_p must be finite, got inf"),
        (Params(), [], 1.0, "uniform must lie in 0 to 1"),
        (Params(presence_penalty=1.0), [9], 0.5, "history must lie in 0 to 8, got 9"),
        (Params(presence_penalty=1.0), [-1], 0.5, "history must lie in 0 to 8, got -1"),
    ],
)
def test_refuses(get: Get, options: Params, history: list[int], uniform: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("sample")(np.zeros(9, np.float32), options, np.array(history, np.int32), uniform)


def test_refuses_an_empty_vocabulary(get: Get) -> None:
    with pytest.raises(ValueError, match="logits must hold at least one value"):
        get("sample")(np.zeros(0, np.float32), replace(DEFAULT), NO_HISTORY, 0.5)
