"""The read bandwidth: a plausible rate, and refusal of counts that measure nothing."""

import pytest

from ftd.kernels import bandwidth


def test_the_rate_is_that_of_a_machine_of_this_age() -> None:
    # From a slow shared core to the caches of a big server: outside, the bytes or the clock are wrong.
    assert 2e8 < bandwidth.measure(1, num_bytes=1 << 24, passes=2) < 1e12


@pytest.mark.parametrize(("num_bytes", "passes"), [(0, 1), (-1, 1), (1 << 20, 0)])
def test_nothing_to_measure_is_refused(num_bytes: int, passes: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        bandwidth.measure(1, num_bytes=num_bytes, passes=passes)
