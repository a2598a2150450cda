"""Numbers that a user can trust: exact intervals, confirmed thresholds, pooled seeds."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.evaluation.statistics import (
    EvaluationResult,
    StatisticsError,
    clopper_pearson,
    first_confirmed,
    longest_run,
    pool,
)


def binomial(n, k, p):
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # "Rule of three" cases have closed forms; the others are in published tables.
        (0, 10, 0.0, 1 - 0.025 ** (1 / 10)),
        (10, 10, 0.025 ** (1 / 10), 1.0),
        (5, 10, 0.187086, 0.812914),
        (97, 100, 0.914824, 0.993770),
        (200, 200, 0.025 ** (1 / 200), 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_exact_intervals(successes, trials, low, high):
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 150).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_leave_half_the_error_in_each_tail(counts):
    successes, trials = counts
    low, high = clopper_pearson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    if successes:
        assert math.fsum(
            binomial(trials, k, low) for k in range(successes, trials + 1)
        ) == pytest.approx(0.025)
    if successes < trials:
        assert math.fsum(binomial(trials, k, high) for k in range(successes + 1)) == pytest.approx(
            0.025
        )


def test_a_higher_level_gives_a_wider_interval():
    narrow, wide = clopper_pearson(40, 50, 0.9), clopper_pearson(40, 50, 0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("counts", [(-1, 5), (6, 5)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(StatisticsError, match="impossible counts"):
        clopper_pearson(*counts)


def test_longest_run_of_successes():
    assert longest_run([]) == 0
    assert longest_run([False, False]) == 0
    assert longest_run([True, False, True, True, False, True]) == 2
    assert longest_run([True] * 5) == 5


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], None),
        ([1.0], None),  # not confirmed yet
        ([0.5, 97 / 100, 0.96, 194 / 200, 0.97, 0.5], 2000),
        ([0.98, 0.99, 0.5], 500),
        ([0.97, 0.96, 0.97, 0.96], None),
    ],
)
def test_a_threshold_counts_when_the_next_evaluation_confirms_it(rates, expected):
    steps = [500 * (i + 1) for i in range(len(rates))]
    assert first_confirmed(steps, rates) == expected


def evaluation(successes, episodes=10, seconds=2.0, **options):
    won = [i < successes for i in range(episodes)]
    durations = [seconds if w else 10.0 for w in won]
    given = {"policy": "rl", "seed_set": "final", "environment_steps": 500,
             "gradient_updates": 1500, "wall_seconds": 3.0}  # fmt: skip
    return EvaluationResult.of_episodes(won, durations, **{**given, **options})


def test_an_evaluation_summarises_its_episodes():
    result = EvaluationResult.of_episodes(
        [True, True, False, True],
        [1.0, 2.0, 10.0, 6.0],
        policy="bc",
        seed_set="periodic",
        environment_steps=0,
        gradient_updates=0,
        wall_seconds=1.5,
    )
    content = json.loads(json.dumps(result.to_json()))
    assert content == result.to_json()  # else a final evaluation would be recorded twice
    low, high = clopper_pearson(3, 4)
    assert content == {
        "environment_steps": 0,
        "gradient_updates": 0,
        "policy": "bc",
        "episodes": 4,
        "successes": 3,
        "success_rate": 0.75,
        "confidence_low": low,
        "confidence_high": high,
        "mean_seconds_to_success": 3.0,
        "longest_success_run": 2,
        "seed_set": "periodic",
        "wall_seconds": 1.5,
        "failures": [2],
        "repeated": 0,
    }
    assert EvaluationResult.from_json(content) == result
    del content["failures"], content["repeated"]  # of a run from before they were recorded
    old = EvaluationResult.from_json(content)
    assert (old.failures, old.repeated) == ((), 0)
    assert str(result).startswith("3/4 = 75.0 % (95 % interval 19.4 to 99.4 %)")


def test_no_success_has_no_time_to_success():
    result = evaluation(0)
    assert result.mean_seconds_to_success is None
    assert "time to success none" in str(result)


def test_incomplete_evaluations_are_refused():
    with pytest.raises(StatisticsError, match="wall_seconds"):
        EvaluationResult.from_json({"policy": "rl"})
    with pytest.raises(StatisticsError, match="one success and one duration"):
        evaluation(0, episodes=0)


def test_pooling_counts_all_episodes_and_shows_the_worst_seed():
    pooled = pool([evaluation(10, seconds=1.0), evaluation(9, seconds=3.0), evaluation(0)])
    assert (pooled.runs, pooled.successes, pooled.episodes) == (3, 19, 30)
    assert (pooled.confidence_low, pooled.confidence_high) == clopper_pearson(19, 30)
    assert (pooled.lowest_rate, pooled.highest_rate) == (0.0, 1.0)
    assert pooled.mean_seconds_to_success == pytest.approx((10 * 1.0 + 9 * 3.0) / 19)
    assert pooled.longest_success_run == 10
    with pytest.raises(StatisticsError, match="nothing to pool"):
        pool([])
