"""What keeps actors and learner in step, whoever is faster: the rate limiter, and the counts."""

from __future__ import annotations

import time

import numpy as np
import pytest

from robot_rl.learning.pacing import RealtimeWeights
from robot_rl.learning.weights import WeightsReceiver
from robot_rl.replay import ReplayClient
from robot_rl.replay.errors import ReplayError
from robot_rl.replay.rate_limiter import RateLimiter
from robot_rl.run import RunDirectory


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


def test_an_actor_in_real_time_counts_the_steps_of_the_others(
    server, client, schema, make_episode, tmp_path
):
    """Each of several actors ran the whole budget: it counted its own steps alone."""
    client.open_session("reach", schema, 2)
    receiver = WeightsReceiver(RunDirectory(tmp_path))
    source = RealtimeWeights(ReplayClient(server.store), receiver, "reach", 0)
    try:
        for others in (5, 12):
            client.append_episode(make_episode(others - source.run_steps(0)), {})
            deadline = time.monotonic() + 30
            while source.run_steps(3) < others:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert source.run_steps(3) == others
            assert source.run_steps(40) == 40, "its own that are not stored yet"
            assert source.at_step(3) is None
    finally:
        source.close()
