"""Behaviour cloning: it learns, it averages, it resumes."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from policy_examples import diffusion

from policies.diffusion import DiffusionPolicy
from policies.networks import EMA, linear, move_towards, power_decay, seeded, warm_up_cosine
from robot_rl.learning.algorithms.base import LearningDiverged
from robot_rl.learning.algorithms.behavior_cloning import (
    CloningOptions,
    fit,
    windows,
)
from robot_rl.replay import ReplayError
from robot_rl.replay.row_sources import EpisodeRows

KEYS = {"state/position": 2}


def demonstrations(episodes=12, length=20):
    """Episodes that go straight home: action = -position / 2."""
    source = np.random.default_rng(0)
    positions, actions = [], []
    for _ in range(episodes):
        position = source.uniform(-1, 1, 2)
        for step in range(length + 1):
            action = -position / 2 if step < length else np.zeros(2)
            positions.append(position)
            actions.append(action)
            position = position + 0.2 * action
    arrays = {
        "state/position": np.array(positions, np.float32),
        "action": np.array(actions, np.float32),
    }
    return arrays, np.arange(1, episodes + 1) * (length + 1)


def learner(updates=300, seed=0):
    arrays, ends = demonstrations()
    policy = DiffusionPolicy.create(
        arrays, KEYS, generator=seeded(seed), horizon=4, denoiser={"hidden": [64, 64]}
    )
    options = CloningOptions(updates=updates, batch_size=64, learning_rate=3e-3, warm_up=20)
    return policy, EpisodeRows(arrays, ends), options


def train(policy, rows, options, seed, *on_progress):
    sample = windows(policy, rows, options.batch_size, np.random.default_rng(seed))
    return fit(policy, sample, options, seeded(seed), *on_progress)


def batch_of(policy, rows, size):
    return windows(policy, rows, size, np.random.default_rng(1))()


def test_the_cloned_policy_does_what_was_shown():
    policy, rows, options = learner(600)
    losses = []
    cloned = train(policy, rows, options, 0, lambda _, loss: losses.append(loss))
    assert len(losses) == 600
    assert losses[-1] < losses[0] / 3
    batch = batch_of(policy, rows, 64)
    with torch.no_grad():
        noise = torch.randn(len(batch["action"]), *cloned.noise_shape, generator=seeded(1))
        chunk = cloned.plan(batch, noise).actions.numpy()
    error = np.abs(chunk - batch["action"])[batch["valid"]].mean()
    spread = np.abs(batch["action"])[batch["valid"]].mean()
    assert error < 0.35 * spread


@pytest.mark.parametrize("updates", [30, 300])
def test_cloning_that_diverges_says_so(updates):
    """A policy of NaN was written as the clone, and refused only when it was read."""
    policy, rows, options = learner(updates)
    options = replace(options, learning_rate=1e30)
    with pytest.raises(LearningDiverged, match=r"no longer a finite.*lower cloning.learning_rate"):
        train(policy, rows, options, 0)


def test_one_seed_gives_one_policy():
    results = []
    for _ in range(2):
        policy, rows, options = learner(20)
        results.append(train(policy, rows, options, 4).state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_unfit_rows_are_refused():
    _, rows, options = learner()
    with pytest.raises(ReplayError, match="no such field; got: state/"):
        train(diffusion(), rows, options, 0)


def test_the_learning_rate_warms_up_and_falls_to_zero():
    factors = [warm_up_cosine(step, 10, 100) for step in range(100)]
    assert factors[0] == 0.1
    assert max(factors) == factors[9] == 1.0
    assert factors[-1] < 0.001
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_averages_follow_their_decay():
    source = linear(1, 1, seeded(0))
    ema = EMA(source)
    ema.step = 15
    start = ema.model.weight.item()
    with torch.no_grad():
        source.weight.fill_(start + 1.0)
    ema.update()
    assert math.isclose(ema.model.weight.item(), start + 16**-0.75, rel_tol=1e-6)
    assert power_decay(0) == 0.0
    assert math.isclose(power_decay(15), 1 - 16**-0.75)
    assert power_decay(10**9) == 0.9999


def test_move_towards_is_a_convex_step():
    target, source = linear(4, 3, seeded(0)), linear(4, 3, seeded(5))
    before = [p.detach().clone() for p in target.parameters()]
    move_towards(target, source, 0.1)
    for old, new, goal in zip(before, target.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * goal)
