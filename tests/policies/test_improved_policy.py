"""An improved policy and its clone in one: which of them acts, and whether it explores."""

import dataclasses

import numpy as np
import pytest
from policy_examples import INTERFACE, diffusion, improved, observations

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.improved import FallbackPolicy
from policies.runner import PolicyRunner


def acts(behaviour, mode="mean", base_share=0.0, steps=4):
    runner = PolicyRunner(behaviour.exploring(mode, base_share=base_share))
    runner.reset(seeds=[7])
    return np.stack([runner.act(observations(1, seed)).action[0] for seed in range(steps)])


def test_the_improved_policy_acts_and_its_clone_where_asked_for():
    both = Behaviour(improved(), INTERFACE, 2)
    clone = acts(Behaviour(diffusion(1), INTERFACE, 2))
    learned = acts(Behaviour(diffusion(0), INTERFACE, 2))
    np.testing.assert_array_equal(acts(both), learned)
    np.testing.assert_array_equal(acts(both, "base"), clone)
    np.testing.assert_array_equal(acts(both, "sample", base_share=1.0), clone)
    assert not np.allclose(learned, clone)


def test_only_a_sample_explores():
    both = Behaviour(improved(), INTERFACE, 2)
    mean, sample = acts(both), acts(both, "sample")
    assert 0.02 < np.abs(sample - mean).mean() < 0.6
    np.testing.assert_array_equal(sample, acts(both, "sample"))


def test_a_policy_that_is_held_back_acts_as_its_clone_also_when_saved(tmp_path):
    both = Behaviour(improved(), INTERFACE, 2)
    both.policy.enabled = False
    clone = acts(Behaviour(diffusion(1), INTERFACE, 2))
    np.testing.assert_array_equal(acts(both), clone)
    checkpoint.save(tmp_path / "policy", both)
    again = checkpoint.load(tmp_path / "policy")
    assert not again.policy.enabled
    np.testing.assert_array_equal(acts(again), clone)
    again.policy.enabled = True
    np.testing.assert_array_equal(acts(again), acts(Behaviour(diffusion(0), INTERFACE, 2)))


def test_chunks_of_another_shape_are_refused():
    with pytest.raises(Exception, match=r"other chunks than its clone.*got: \(4, 3\)"):
        FallbackPolicy(diffusion(horizon=4), diffusion())


def test_noise_of_an_episode_does_not_depend_on_who_else_acts():
    both = Behaviour(improved(), INTERFACE, 2)
    alone = acts(both, "sample")
    runner = PolicyRunner(dataclasses.replace(both).exploring("sample"), 2)
    runner.reset(seeds=[3, 7])
    seen = [observations(1, seed) for seed in range(4)]
    twice = [{name: np.repeat(column, 2, 0) for name, column in each.items()} for each in seen]
    together = np.stack([runner.act(each).action[1] for each in twice])
    np.testing.assert_allclose(together, alone, atol=1e-5)
