"""The tanh-Gaussian actor and the residual on a base."""

import pytest
import torch
from policy_examples import KEYS, diffusion, gaussian, observations, residual
from untrained_policy import untrained_residual

from policies.encoders import StateEncoder
from policies.errors import PolicyError
from policies.gaussian import GaussianTanh
from policies.networks import seeded


def actor(**options):
    return GaussianTanh(5, 3, [16], generator=seeded(0), **options)


def test_the_density_is_that_of_a_transformed_normal():
    from torch.distributions import Normal, TanhTransform, TransformedDistribution

    features = torch.randn(8, 5, generator=seeded(1))
    mean, log_std = actor()(features)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    action, log_prob = actor().sample(features, seeded(2))
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), atol=1e-4, rtol=1e-4)


def test_density_and_gradient_stay_finite_far_out():
    network = actor()
    with torch.no_grad():
        network.network[-1].bias[:3] = 50.0
    features = torch.zeros(2, 5)
    action, log_prob = network.sample(features, seeded(0))
    (log_prob.sum() + action.sum()).backward()
    assert torch.isfinite(log_prob).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_a_zero_last_layer_starts_at_zero_mean_and_the_given_deviation():
    network = actor(zero_last_layer=True, initial_log_std=-2.0)
    mean, log_std = network(torch.randn(4, 5, generator=seeded(0)))
    assert (mean == 0).all()
    torch.testing.assert_close(log_std, torch.full((4, 3), -2.0))


def test_weights_and_samples_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    policy = residual()
    policy.act(observations(2), torch.zeros(2, 3), torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_seed_gives_one_network():
    for mine, other in zip(gaussian(3).parameters(), gaussian(3).parameters(), strict=True):
        assert torch.equal(mine, other)


def test_the_residual_is_bounded_by_its_scale_and_the_action_by_one():
    policy = residual()
    base = torch.full((256, 3), 0.9)
    action = policy.act(observations(256), base, torch.randn(256, 3, generator=seeded(0)))
    assert action.max() <= 1
    assert (action - base).abs().max() <= policy.scale + 1e-6


def test_a_correction_acts_where_critics_prefer_it():
    policy, given = residual(), torch.zeros(256, 3)
    with torch.no_grad():
        policy.actor.network[-1].bias[:3] = 1.0  # a correction for every state
    acted = policy.act(observations(256), given, None).abs().sum(1) > 0
    assert 0 < acted.sum() < 256
    with torch.no_grad():
        policy.critics.network.weights[-1].neg_()  # what was better is worse now
    reversed_choice = policy.act(observations(256), given, None).abs().sum(1) > 0
    assert torch.equal(reversed_choice, ~acted)


def test_held_back_it_is_the_base():
    policy, given = residual(), torch.zeros(256, 3)
    with torch.no_grad():
        policy.actor.network[-1].bias[:3] = 1.0
    policy.enabled = False
    assert torch.equal(policy.act(observations(256), given, None), given)
    assert policy.config["enabled"] is False  # and a checkpoint of it stays so


def test_only_the_residual_learns():
    policy = residual()
    policy.act(observations(4), torch.zeros(4, 3), torch.ones(4, 3)).sum().backward()
    assert all(p.grad is not None for p in policy.actor.parameters())
    assert not any(p.requires_grad for p in policy.base_policy.parameters())


def test_settings_out_of_range_are_refused():
    encoder = StateEncoder(KEYS)
    with pytest.raises(PolicyError, match="scale is out of range"):
        untrained_residual(encoder, diffusion(), scale=0.0)
    with pytest.raises(PolicyError, match="log_std"):
        actor(initial_log_std=3.0)
