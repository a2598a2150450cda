"""The rate limiter keeps samples and inserts in step, whoever is faster."""

from __future__ import annotations

import numpy as np
import pytest

from robot_rl.replay.errors import ReplayError
from robot_rl.replay.rate_limiter import RateLimiter


def test_nothing_is_sampled_before_the_minimum():
    limiter = RateLimiter(samples_per_insert=8, minimum_inserts=100, error_samples=16)
    assert limiter.samples_allowed(99) == 0
    assert limiter.samples_allowed(100) == 16
    assert limiter.inserts_allowed(0) == 102


@pytest.mark.parametrize("eagerness", [0.02, 0.5, 0.98])
def test_the_ratio_holds_whoever_is_faster(eagerness):
    limiter = RateLimiter(samples_per_insert=3.5, minimum_inserts=20, error_samples=35)
    rng = np.random.default_rng(0)
    inserts = samples = 0
    for _ in range(20_000):
        inserting = rng.random() < eagerness
        may_insert = inserts < limiter.inserts_allowed(samples)
        may_sample = samples < limiter.samples_allowed(inserts)
        assert may_insert or may_sample, "both sides wait for each other"
        inserts += inserting and may_insert
        samples += not inserting and may_sample
        difference = 3.5 * (inserts - 20) - samples
        assert difference <= 35
        assert difference >= -35 or inserts < 20
    assert samples / (inserts - 20) == pytest.approx(3.5, rel=0.1)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ((0.0, 10, 8.0), "samples_per_insert"),
        ((2.0, -1, 8.0), "minimum_inserts"),
        ((2.0, 10, 1.5), "error band"),
        ((0.5, 10, 0.5), "error band"),
    ],
)
def test_numbers_that_cannot_work_are_refused(numbers, named):
    with pytest.raises(ReplayError, match=named):
        RateLimiter(*numbers)
