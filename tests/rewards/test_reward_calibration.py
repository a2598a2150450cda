"""Calibration, threshold and the figures on held-out episodes, on scores that are made up."""

from dataclasses import replace

import numpy as np
import pytest

from robot_rl.rewards.calibration import (
    Limits,
    Scored,
    best_run,
    calibrate,
    choose_threshold,
    first_success,
    fit_platt,
    most_mistakes,
    upper_bound,
    validate,
    weaknesses,
)
from robot_rl.rewards.examples import FrameLabels

LIMITS = Limits(frames=0.01, episodes=0.02, consecutive_frames=2)


def episode(index, scores, success_from=None):
    shown = np.arange(len(scores)) >= (len(scores) if success_from is None else success_from)
    return Scored(index, np.array(scores, float), FrameLabels(shown, ~shown))


def recording(rng, failures=200, successes=30, frames=20, apart=6.0):
    made = [episode(i, rng.normal(-apart, 1, frames)) for i in range(failures)]
    for i in range(successes):
        logits = np.concatenate([rng.normal(-apart, 1, frames), rng.normal(apart, 1, 4)])
        made.append(episode(failures + i, logits, success_from=frames))
    return made


def test_the_upper_bound_is_the_one_sided_one():
    assert upper_bound(0, 149) == pytest.approx(1 - 0.05 ** (1 / 149))
    assert upper_bound(0, 149) <= 0.02 < upper_bound(0, 148)
    assert upper_bound(0, 0) == 1.0
    assert most_mistakes(1000, 0.01) == 4
    assert most_mistakes(100, 0.01) == 0


def test_probabilities_mean_what_they_say():
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=20_000)
    labels = rng.uniform(size=20_000) < probability
    logits = (np.log(probability / (1 - probability)) + 2) * 5  # five times too sure, and shifted
    assert fit_platt(logits, labels) == pytest.approx((0.2, -2.0), abs=0.1)


def test_two_kinds_that_are_parted_without_a_mistake_keep_the_sigmoid_finite():
    logits = np.array([-3.0] * 50 + [3.0] * 10)
    scale, offset = fit_platt(logits, logits > 0)
    assert np.isfinite([scale, offset]).all()
    assert 0 < scale < 10


def test_a_threshold_keeps_the_limits_and_finds_the_successes():
    decision = calibrate(recording(np.random.default_rng(1)), LIMITS)
    judged = recording(np.random.default_rng(2))
    scored = [Scored(e.index, decision.probability(e.scores), e.labels) for e in judged]
    result = validate(scored, decision.threshold, 2)
    assert result.false_frames.bound < 0.01
    assert result.false_episodes.bound < 0.02
    assert result.missed_episodes.count == 0
    assert result.delay_frames == 1.0
    assert weaknesses(result, LIMITS) == []


def test_one_bad_frame_is_forgiven_but_two_in_a_row_are_not():
    fine = [episode(i, [0.1] * 10) for i in range(300)]
    success = episode(300, [0.1, 0.9, 0.9], success_from=1)
    blink = episode(301, [0.1, 0.8, 0.1, 0.8, 0.1])
    assert choose_threshold([*fine, success, blink], LIMITS) < 0.8
    stuck = [episode(302 + i, [0.1, 0.8, 0.8, 0.1]) for i in range(3)]
    assert choose_threshold([*fine, success, *stuck], LIMITS) > 0.8


def test_a_success_need_not_be_seen_in_its_first_frame():
    fine = [episode(i, [0.1] * 10) for i in range(300)]
    success = episode(300, [0.1, 0.55, 0.95, 0.95], success_from=1)
    assert 0.7 < choose_threshold([*fine, success], LIMITS) < 0.9


def test_too_few_data_are_said_to_be_too_few():
    few = [episode(i, [0.1] * 10) for i in range(20)]
    result = validate([*few, episode(20, [0.1, 0.9], success_from=1)], 0.5, 2)
    notes = weaknesses(result, LIMITS)
    assert len(notes) == 3
    assert "only 201 held-out frames without success" in notes[0]
    assert "may be 13.9 %" in notes[1]
    assert "seen in 0 of 1" in notes[2]


def test_a_classifier_that_is_wrong_too_often_is_said_to_be():
    many = [episode(i, [0.1] * 10) for i in range(200)]
    wrong = [episode(200 + i, [0.9] * 10) for i in range(10)]
    notes = weaknesses(validate([*many, *wrong], 0.5, 2), LIMITS)
    assert "100 of 2100 held-out frames" in notes[0]
    assert "10 of 210 held-out episodes" in notes[1]


def test_runs_of_frames():
    assert best_run(np.array([0.9, 0.1, 0.7, 0.6, 0.9]), 2) == 0.6
    assert best_run(np.array([0.9]), 2) == 0.0
    assert first_success(np.array([True, False, True, True]), 2) == 3
    assert first_success(np.array([True, False, True]), 2) is None


def test_a_success_that_is_seen_before_it_happens_is_early():
    early = episode(0, [0.9, 0.9, 0.9, 0.9], success_from=3)
    result = validate([early, episode(1, [0.1, 0.1])], 0.5, 2)
    assert (result.early_episodes.count, result.false_frames.count) == (1, 3)
    assert result.delay_frames is None


def test_frames_of_which_nobody_knows_count_neither_way():
    frames = np.arange(6)
    unsure = Scored(
        0, np.array([0.1, 0.1, 0.9, 0.9, 0.9, 0.9]), FrameLabels(frames >= 4, frames < 2)
    )
    result = validate([unsure, episode(1, [0.1, 0.1])], 0.5, 2)
    assert (result.false_frames.count, result.false_frames.trials) == (0, 4)
    assert (result.early_episodes.count, result.missed_episodes.count) == (0, 0)
    assert result.true_positives == 2
    logits = [replace(unsure, scores=np.array([-3.0, -3.0, 3.0, 3.0, 3.0, 3.0]))] * 30
    failed = [episode(2, [-3.0] * 12) for _ in range(200)]
    assert calibrate([*logits, *failed], LIMITS).threshold < 0.9
