"""What holds for every registered algorithm."""

import copy
import math

import pytest
import torch
from algorithm_examples import (
    CHOICES,
    CRITIC_ONLY,
    DIMENSION,
    SIZE,
    acts,
    batch,
    cloned,
    make,
    same,
    train,
    weights,
)
from safetensors.torch import load, save

from policies import checkpoint
from policies.behaviour import Behaviour, Interface
from robot_rl.learning.algorithms.base import AlgorithmError

pytestmark = pytest.mark.parametrize("choice", CHOICES)


def test_what_is_required_suffices_and_metrics_are_finite_scalars(choice):
    algorithm = make(choice)
    for metrics in train(algorithm, CRITIC_ONLY + 4):
        assert metrics
        assert all(math.isfinite(value) for value in metrics.values())
    tensors = algorithm.update(batch(algorithm))
    assert all(t.shape == () and not t.requires_grad for t in tensors.values())


def test_a_missing_field_is_named(choice):
    algorithm = make(choice)
    before = algorithm.state_dict()
    for name in batch(algorithm):
        content = batch(algorithm)
        del content[name]
        with pytest.raises(AlgorithmError, match=f"{name!r}; got: .*expected: "):
            algorithm.update(content)
    assert same(before, algorithm.state_dict())


def test_one_seed_gives_one_course_whatever_the_global_generator_does(choice):
    torch.manual_seed(1)
    one = make(choice)
    known = torch.get_rng_state()
    first = train(one, CRITIC_ONLY + 4)
    assert torch.equal(known, torch.get_rng_state())
    torch.manual_seed(2)
    other = make(choice)
    assert train(other, CRITIC_ONLY + 4) == first
    assert same(one.state_dict(), other.state_dict())
    assert not same(one.state_dict(), make(choice, seed=1).state_dict())


@pytest.mark.parametrize("stop", [0, 2, CRITIC_ONLY + 3])
def test_a_resumed_training_goes_on_bit_for_bit(choice, stop):
    through = make(choice)
    train(through, stop)
    state = load(save(through.state_dict()))
    expected = train(through, 6, first=stop)
    resumed = make(choice, seed=5)
    train(resumed, 8, first=100)  # whatever it was before is gone
    resumed.load_state_dict(state)
    assert train(resumed, 6, first=stop) == expected
    assert same(through.state_dict(), resumed.state_dict())


def test_a_kept_state_does_not_change_while_training_goes_on(choice):
    algorithm = make(choice)
    train(algorithm, CRITIC_ONLY + 2)
    state = algorithm.state_dict()
    kept = copy.deepcopy(state)
    train(algorithm, 4)
    assert same(state, kept)


def test_a_state_that_does_not_fit_is_refused(choice):
    algorithm = make(choice)
    state = algorithm.state_dict()
    larger = make(choice, changes=[("settings.critic_heads", 4)]).state_dict()
    cut = {
        name: value for name, value in state.items() if not name.startswith(("actor/", "learned/"))
    }
    others = (cut, {}) if choice == "filtered_cloning" else (larger, cut, {})  # without critics
    for other in others:
        with pytest.raises(AlgorithmError, match=r"does not fit.*got: .*next: "):
            algorithm.load_state_dict(other)


def test_policies_are_snapshots(choice):
    algorithm = make(choice)
    train(algorithm, CRITIC_ONLY + 2)
    policies = algorithm.acting_policy(), algorithm.policy()
    before = [weights(policy) for policy in policies]
    train(algorithm, 6)
    assert [same(weights(p), b) for p, b in zip(policies, before, strict=True)] == [True, True]


def test_actions_stay_within_the_range(choice):
    algorithm = make(choice, changes=[("settings.actor_rate", 0.05)])
    train(algorithm, 30)
    noise = 5 * torch.randn(SIZE, DIMENSION, generator=torch.Generator().manual_seed(0))
    for policy in (algorithm.acting_policy(), algorithm.policy()):
        for action in (acts(policy)[0], acts(policy, noise=noise)[0]):
            assert action.shape == (SIZE, DIMENSION)
            assert float(action.abs().max()) <= 1.0


def test_the_base_is_never_changed(choice):
    base = cloned()
    before = weights(base)
    algorithm = make(choice, base=base)
    train(algorithm, CRITIC_ONLY + 6)
    assert same(weights(base), before)


def test_the_deployed_policy_survives_a_checkpoint(choice, tmp_path):
    algorithm = make(choice)
    train(algorithm, CRITIC_ONLY + 4)
    policy = algorithm.policy()
    interface = Interface("peg_insert", 10.0, ("x", "y"))
    checkpoint.save(tmp_path / "policy", Behaviour(policy, interface))
    again = checkpoint.load(tmp_path / "policy").policy
    assert torch.equal(acts(again)[0], acts(policy)[0])
