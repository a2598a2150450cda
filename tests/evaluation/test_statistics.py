"""Numbers that a user can trust: exact intervals, confirmed thresholds, pooled seeds."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.data import intervals
from robot_rl.data.intervals import (
    anytime_interval,
    clopper_pearson,
    failures_allowed,
    interval_over_runs,
    trials_needed,
)
from robot_rl.evaluation.statistics import (
    NOISE_LEVEL,
    Comparison,
    EvaluationResult,
    Labels,
    StatisticsError,
    first_confirmed,
    worse_than_start,
)
from robot_rl.learning.stages.decide import decide
from robot_rl.run import RunDirectory


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


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_that_may_be_looked_at_any_time_is_wider(counts):
    (low, high), (inner_low, inner_high) = anytime_interval(*counts), clopper_pearson(*counts)
    assert 0.0 <= low <= inner_low + 1e-9
    assert inner_high - 1e-9 <= high <= 1.0
    for bound in (low, high):
        if 0.0 < bound < 1.0:
            successes, trials = counts
            assert (trials + 1) * binomial(trials, successes, bound) == pytest.approx(0.05)


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_an_interval_holds_however_often_one_looks(p):
    rng, trials, runs, left_out = np.random.default_rng(1), 50, 400, 0
    known = {(s, n): anytime_interval(s, n) for n in range(1, trials + 1) for s in range(n + 1)}
    for _ in range(runs):
        seen = np.cumsum(rng.random(trials) < p).tolist()
        intervals = [known[s, n] for n, s in enumerate(seen, 1)]
        left_out += not all(low <= p <= high for low, high in intervals)
    assert left_out / runs <= 0.05


def test_over_runs_few_training_seeds_say_little():
    # As for so many coins: three seeds that always succeed may be luck.
    for rates in ([1.0], [1.0] * 3, [1.0] * 10, [0.0, 1.0, 1.0, 1.0]):
        exact = clopper_pearson(int(sum(rates)), len(rates))
        assert interval_over_runs(rates) == pytest.approx(exact, abs=0.01)
    widths = [np.ptp(interval_over_runs([0.97, 0.99] * n)) for n in (1, 3, 10, 50)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0.8
    assert widths[-1] < 0.1
    for impossible in ([], [1.1]):
        with pytest.raises(StatisticsError, match="impossible rates"):
            interval_over_runs(impossible)


@pytest.mark.parametrize("runs", [2, 3, 10])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda rng, k: np.full(k, 0.9), 0.9),  # all seeds alike: only the scenes are random
        (lambda rng, k: rng.beta(0.98 * 2, 0.02 * 2, k), 0.98),
        (lambda rng, k: rng.beta(0.5, 0.5, k), 0.5),
        (lambda rng, k: np.where(rng.random(k) < 0.1, 0.0, 0.99), 0.9 * 0.99),  # one in ten fails
    ],
)
def test_over_runs_the_interval_covers_what_a_further_seed_does(runs, draw, mean, monkeypatch):
    monkeypatch.setattr(intervals, "_DRAWS", 2_000)
    rng, trials, covered = np.random.default_rng(1), 200, 0
    for _ in range(trials):
        rates = rng.binomial(100, draw(rng, runs)) / 100
        low, high = interval_over_runs(rates.tolist())
        covered += low <= mean <= high
    assert covered / trials >= 0.95


def test_the_trials_that_a_claim_needs():
    # Without a failure claim ** n <= 5 %; published tables have 59, 93 and 124 for 95 % of 95 %.
    assert trials_needed(0.99) == math.ceil(math.log(0.05) / math.log(0.99)) == 299
    assert [trials_needed(0.95, 0.95, k) for k in range(3)] == [59, 93, 124]
    assert failures_allowed(58, 0.95) == -1
    assert [failures_allowed(n, 0.95) for n in (59, 92, 93, 124)] == [0, 0, 1, 2]
    for k in range(3):  # it is proved exactly where the one-sided lower bound reaches the claim
        n = trials_needed(0.9, 0.95, k)
        assert clopper_pearson(n - k, n, 0.9)[0] >= 0.9 > clopper_pearson(n - k - 1, n - 1, 0.9)[0]


def test_a_claim_is_proved_wrongly_no_more_often_than_stated():
    n = trials_needed(0.9, 0.95, 2)
    wrongly = math.fsum(binomial(n, k, 0.1) for k in range(failures_allowed(n, 0.9) + 1))
    assert 0.04 < wrongly <= 0.05


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
    results = [
        replace(evaluation(1), environment_steps=500 * i, success_rate=rate)
        for i, rate in enumerate(rates, 1)
    ]
    assert first_confirmed(results) == expected


def evaluation(successes, episodes=10, seconds=2.0, **options):
    won = [i < successes for i in range(episodes)]
    durations = [seconds if w else 10.0 for w in won]
    given = {"policy": "residual", "seed_set": "final", "first_seed": 20000,
             "environment_steps": 500, "gradient_updates": 1500, "wall_seconds": 3.0}  # fmt: skip
    return EvaluationResult.of_episodes(won, durations, **{**given, **options})


def test_an_evaluation_summarises_its_episodes():
    result = EvaluationResult.of_episodes(
        [True, True, False, True],
        [1.0, 2.0, 10.0, 6.0],
        policy="diffusion",
        seed_set="periodic",
        first_seed=10000,
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
        "policy": "diffusion",
        "episodes": 4,
        "successes": 3,
        "success_rate": 0.75,
        "confidence_low": low,
        "confidence_high": high,
        "mean_seconds_to_success": 3.0,
        "longest_success_run": 2,
        "seed_set": "periodic",
        "first_seed": 10000,
        "wall_seconds": 1.5,
        "failures": [2],
        "held_back": False,
        "deployed": None,
        "policy_name": None,
        "made_again": {},
        "operated": 0,
        "labels": None,
        "domain": None,
        "task": None,
        "scenes": {},
        "against_cloned": None,
        "mean_return": None,
    }
    assert EvaluationResult.from_json(content) == result
    compared = replace(result, against_cloned=Comparison(lost=3, won=1, level=0.01))
    assert EvaluationResult.from_json(json.loads(json.dumps(compared.to_json()))) == compared
    assert str(result).startswith("3/4 = 75.0 % (95 % interval 19.4 to 99.4 %)")


def test_what_people_did_and_said_is_part_of_the_result():
    facts = [
        {"operator_success": said, "detector_success": found}
        for said, found in [(None, True), (True, True), (False, True), (True, False), (None, False)]
    ]
    labels = Labels.of(facts)
    assert labels == Labels(3, operator_successes=2, operator_failures=1, disputed=(2, 3))
    assert Labels.of([{}, {}]) is None  # nobody was there
    only_human = Labels.of([{"operator_success": True}, {"operator_success": None}])
    assert only_human == Labels(None, 1, 0, ())
    result = evaluation(9, made_again={"cut": 2, "pause": 1}, operated=1, labels=labels)
    assert EvaluationResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert (
        "3 attempts made again (2 cut, 1 pause), the operator drove in 1 episodes, the operator"
        " judged 3 episodes, 2 of them otherwise than the detector (first numbers 2, 3)"
    ) in str(result)
    assert evaluation(9).conduct == ""


def test_no_success_has_no_time_to_success():
    result = evaluation(0)
    assert result.mean_seconds_to_success is None
    assert "time to success none" in str(result)


def test_incomplete_evaluations_are_refused():
    with pytest.raises(StatisticsError, match="wall_seconds"):
        EvaluationResult.from_json({"policy": "residual"})


def test_only_what_is_beyond_noise_is_worse_than_the_cloned_policy():
    found = {500: Comparison(34, 0), 1000: Comparison(4, 2), 1500: None}
    results = [evaluation(4, environment_steps=n, against_cloned=c) for n, c in found.items()]
    assert worse_than_start(results) == [500]


def test_where_no_success_is_counted_the_return_is_what_is_said():
    result = evaluation(0, 2, mean_return=17.5)
    assert str(result) == "no success is counted; mean return 17.5 in 2 episodes"
    assert result.count == "no success counted, mean return 17.5"
    assert result.score > evaluation(0, 2, mean_return=3.0).score
    assert (result.rate, result.interval) == ("return 17.5", "")
    assert result.beside(evaluation(0, 2, mean_return=40.0)) is None  # that may not be chance
    assert EvaluationResult.from_json(result.to_json()) == result


def on_scenes(won, first=100, steps=500):
    """An evaluation of the scenes from `first` on, each solved or not."""
    return EvaluationResult.of_episodes(
        won,
        [1.0] * len(won),
        policy="residual" if steps else "diffusion",
        seed_set="final",
        first_seed=first,
        environment_steps=steps,
        gradient_updates=steps,
        wall_seconds=1.0,
    )


def test_two_policies_are_compared_scene_by_scene():
    cloned = on_scenes([True] * 9 + [False], steps=0)
    learned = on_scenes([False] * 4 + [True] * 6)
    assert learned.beside(cloned) == Comparison(lost=4, won=1)
    # Of other scenes only those count that both have tried, and without any nothing is said.
    assert on_scenes([False, True, True], first=108).beside(cloned) == Comparison(1, 1)
    assert on_scenes([False], first=110).beside(cloned) is None


@pytest.mark.parametrize(
    ("lost", "won", "looks", "chance", "worse"),
    [
        (0, 0, 1, 1.0, False),
        (4, 0, 1, 1 / 16, False),
        (5, 0, 1, 1 / 32, True),
        (5, 0, 2, 1 / 32, False),
        (88, 0, 16, 2.0**-88, True),
        (0, 88, 1, 2.0**-88, False),
        (8, 1, 1, 10 / 512, True),
    ],
)
def test_worse_is_what_noise_does_not_explain(lost, won, looks, chance, worse):
    comparison = Comparison(lost, won, NOISE_LEVEL / looks)
    assert comparison.chance == pytest.approx(chance)
    assert comparison.worse == worse


def test_a_policy_that_is_as_good_is_called_worse_in_one_run_of_twenty_at_the_most():
    rng, looks, runs = np.random.default_rng(0), 8, 400
    called = 0
    for _ in range(runs):
        cloned = on_scenes(rng.random(100) < 0.8, steps=0)
        learned = [on_scenes(rng.random(100) < 0.8) for _ in range(looks)]
        called += any(result.beside(cloned, looks).worse for result in learned)
    assert called / runs <= NOISE_LEVEL


@pytest.mark.parametrize(
    ("cloned", "learned", "said"),
    [
        (98, 10, "deployed: the cloned policy (98 of 100) — the learned policy solved 10 of 100 on"
         " the same scenes"),
        (10, 98, "deployed: the learned policy (98 of 100) — the cloned policy solved 10 of 100 on"
         " the same scenes"),
        (98, 97, "deployed: the cloned policy (98 of 100) — the learned policy solved 97 of 100 on"
         " the same scenes, which may be chance"),
        (97, 98, "deployed: the learned policy (98 of 100) — the cloned policy solved 97 of 100 on"
         " the same scenes, which may be chance"),
        (99, 99, "deployed: the cloned policy (99 of 100) — the learned policy did as well on"
         " the same scenes"),
        (98, None, "deployed: the cloned policy (98 of 100) — nothing was learned"),
        (None, 97, "deployed: the learned policy (97 of 100) — the cloned policy was not evaluated"
         " beside it; robot-rl train resume=runs/1 evaluation.compare=true evaluates both"),
    ],
)  # fmt: skip
def test_the_policy_that_succeeds_more_often_on_the_same_scenes_is_deployed(
    cloned, learned, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("runs/1/checkpoints/bc").mkdir(parents=True)

    assert decided(results(cloned=cloned, learned=learned)) == said


def decided(found, **options):
    """What `train` decides, in words."""
    run = RunDirectory(Path("runs/1"))
    return str(decide(run, found, **options)).replace(str(run.path), "runs/1")


def results(**counts):
    """Final evaluations in 100 scenes, in the order of their making."""
    made = {"cloned": 0, "accepted": 300, "learned": 500}
    return {
        name: replace(on_scenes([n < count for n in range(100)], steps=steps), policy_name=name)
        for name, steps in made.items()
        if (count := counts.get(name)) is not None
    }


@pytest.mark.parametrize(
    ("cloned", "accepted", "learned", "held_back", "said"),
    [
        (40, 75, 98, False, "deployed: the learned policy (98 of 100) — the cloned policy solved 40"
         " of 100 and the accepted policy solved 75 of 100 on the same scenes"),
        (40, 75, 60, False, "deployed: the accepted policy (75 of 100) — the cloned policy solved"
         " 40 of 100 and the learned policy solved 60 of 100 on the same scenes"),
        (40, 75, 76, True, "deployed: the accepted policy (75 of 100) — the cloned policy solved"
         " 40 of 100 and the learned policy solved 76 of 100 on the same scenes; training held the"
         " learned policy back, and this does not show it to be better beyond noise"),
        (40, 30, 35, True, "deployed: the cloned policy (40 of 100) — the accepted policy solved"
         " 30 of 100 and the learned policy solved 35 of 100 on the same scenes; training held the"
         " learned policy back"),
        (40, 75, 98, True, "deployed: the learned policy (98 of 100) — the cloned policy solved 40"
         " of 100 and the accepted policy solved 75 of 100 on the same scenes"),
        (40, None, None, True, "deployed: the cloned policy (40 of 100) — training has held back"
         " what was learned; robot-rl train resume=runs/1 evaluation.compare=true evaluates both"),
    ],
)  # fmt: skip
def test_what_a_gate_accepted_is_deployed_unless_online_learning_has_gone_beyond(
    cloned, accepted, learned, held_back, said
):
    found = results(cloned=cloned, accepted=accepted, learned=learned)
    assert decided(found, held_back=held_back) == said


@pytest.mark.parametrize(("learned", "deployed"), [(98, "learned"), (62, "cloned"), (40, "cloned")])
def test_what_training_held_back_is_deployed_only_if_it_is_better_beyond_noise(learned, deployed):
    both = results(cloned=60, learned=learned)
    said = decided(both, held_back=True)
    assert said.startswith(f"deployed: the {deployed} policy")
    assert ("training held the learned policy back" in said) == (deployed == "cloned")


@pytest.mark.parametrize(("most", "level"), [(10, 0.05), (40, 0.05), (40, 0.01)])
def test_equal_policies_are_told_apart_no_more_often_than_stated_though_one_looks_each_time(
    most, level
):
    """Exactly, over all that can happen where each scene tells them apart: the worst case."""
    going, told_apart = {0: 1.0}, 0.0
    for scene in range(1, most + 1):
        after = {}
        for won, probability in going.items():
            for now in (won, won + 1):
                after[now] = after.get(now, 0.0) + probability / 2
        told = [won for won in after if Comparison(scene - won, won, level, most).beyond_noise]
        told_apart += math.fsum(after.pop(won) for won in told)
        going = after
    assert 0.4 * level < told_apart <= level


def test_looking_each_time_costs_evidence():
    assert Comparison(0, 5).beyond_noise
    assert not Comparison(0, 5, most=200).beyond_noise
    assert Comparison(0, 8, most=200).beyond_noise
    assert Comparison(3, 3, most=200).chance == 1.0
    assert Comparison(2, 14, most=200).chance == Comparison(14, 2, most=200).chance
    assert Comparison(14, 2, most=200).worse


def test_a_comparison_ends_where_nothing_can_change_it():
    assert Comparison(0, 10, most=200).settled(12)
    assert not Comparison(5, 5, most=200).settled(100)
    assert Comparison(5, 5, most=200).settled(195)  # whoever wins the last five
    assert Comparison(5, 5, most=200).settled(200)
