"""How improvements of a generative policy explore, whatever its process is."""

import pytest
import torch
from algorithm_examples import INTERFACE, SIZE, cloned, make

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.denoisers import MLPDenoiser
from policies.networks import seeded
from policies.processes.ddim import DDIM
from policies.processes.flow import Flow, FlowSDE
from robot_rl.extras.zoo.flow_noise import FlowNoise


@pytest.mark.parametrize(
    ("kind", "acting"), [(DDIM, DDIM), (Flow, FlowSDE), (FlowSDE, FlowSDE), (FlowNoise, FlowNoise)]
)
@torch.no_grad()
def test_every_transition_is_drawn_with_a_density(kind, acting, tmp_path):
    base = cloned()
    network = MLPDenoiser(base.encoder.features, 8, 2, generator=seeded(0), hidden=[16])
    algorithm = make("action_gradient", base=base.under(kind(network, steps=4)))
    checkpoint.save(tmp_path / "policy", Behaviour(algorithm.acting_policy(), INTERFACE))
    policy = checkpoint.load(tmp_path / "policy").policy.exploring
    assert type(policy.process) is acting
    features = torch.randn(SIZE, policy.encoder.features, generator=seeded(1))
    noise = torch.randn(SIZE, *policy.noise_shape, generator=seeded(2))
    chain = policy.process.sample(features, noise)
    for index in range(4):
        _, std = policy.process.transition(chain[:, index], index, features)
        assert float(std.min()) > algorithm.settings.exploration_std - 1e-6
    assert bool(policy.process.log_prob(chain, features).isfinite().all())
    assert type(algorithm.policy().policy.process) is kind  # deployed as it was cloned
