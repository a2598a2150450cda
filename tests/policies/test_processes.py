"""The denoising process against diffusers, and sampler against scorer."""

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from policy_examples import KEYS, diffusion, recorded

from policies.denoisers import MLPDenoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import seeded
from policies.processes.base import masked_mean_square
from policies.processes.ddim import DDIM


def process(horizon=4, train_steps=50, **options):
    network = MLPDenoiser(5, horizon, 2, generator=seeded(0), hidden=[32])
    return DDIM(network, train_steps=train_steps, **options)


@pytest.mark.parametrize("spacing", ["leading", "trailing"])
@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
@pytest.mark.parametrize("eta", [0.0, 1.0])
@torch.no_grad()
def test_a_transition_is_diffusers_step(eta, prediction, spacing):
    mine = process(eta=eta, prediction=prediction, spacing=spacing)
    reference = DDIMScheduler(
        50,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=prediction,
        timestep_spacing=spacing,
        clip_sample=True,
    )
    reference.set_timesteps(10)
    features = torch.randn(3, 5, generator=seeded(1))
    noise = torch.randn(3, *mine.noise_shape, generator=seeded(2))
    chain = mine.sample(features, noise)
    assert chain.shape == (3, 11, 4, 2)
    assert mine.options["noise_table"]["timesteps"] == reference.timesteps.tolist()
    for index, step in enumerate(reference.timesteps):
        time = sinusoidal_embedding(step[None], mine.denoiser.embedding)
        output = mine.denoiser(chain[:, index], time, features)
        expected = reference.step(
            output,
            step,
            chain[:, index],
            eta=eta,
            variance_noise=noise[:, index + 1] if eta else None,
        ).prev_sample
        torch.testing.assert_close(chain[:, index + 1], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("horizon", [1, 4])
@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_sampler_and_scorer_share_one_grid(horizon, prediction):
    """The policy-gradient ratio of an unchanged policy is 1 at every step of the chain."""
    mine = process(horizon, eta=1.0, std_bounds=(0.0067, 0.1), prediction=prediction)
    features = torch.randn(3, 5, generator=seeded(1))
    noise = torch.randn(3, *mine.noise_shape, generator=seeded(2))
    chain = mine.sample(features, noise).detach()
    score = mine.log_prob(chain, features)
    assert score.shape == (3, 10, horizon, 2)
    for index in range(mine.steps):
        mean, std = mine.transition(chain[:, index], index, features)
        drawn = torch.distributions.Normal(mean, std.expand_as(mean)).log_prob(chain[:, index + 1])
        torch.testing.assert_close(score[:, index], drawn, atol=1e-3, rtol=1e-3)
        normal = torch.distributions.Normal(0.0, 1.0).log_prob(noise[:, index + 1]) - std.log()
        torch.testing.assert_close(score[:, index], normal, atol=2e-3, rtol=1e-3)


def test_a_deterministic_chain_has_no_density():
    mine = process(eta=0.0)
    features = torch.zeros(1, 5)
    chain = mine.sample(features, torch.zeros(1, *mine.noise_shape))
    with pytest.raises(PolicyError, match=r"deterministic and has no density.*std_bounds"):
        mine.log_prob(chain, features)


def test_padded_actions_are_not_charged():
    error = torch.randn(5, 8, 3, generator=seeded(0))
    valid = torch.arange(8).expand(5, 8) < torch.tensor([[1], [3], [8], [8], [5]])
    padded = torch.where(valid[..., None], error, torch.full_like(error, 1e3))
    expected = error[valid].square().mean()
    torch.testing.assert_close(masked_mean_square(padded, valid), expected)


def test_the_policy_passes_the_mask_on():
    policy = diffusion()
    rows = recorded(64)
    batch = {name: rows[name].reshape(32, 2, -1) for name in KEYS}
    batch["action"] = rows["action"][:32, None].repeat(8, 1)
    batch["valid"] = np.zeros((32, 8), bool)
    assert policy.loss(batch, seeded(0)) == 0
    batch["valid"][:, 0] = True
    assert policy.loss(batch, seeded(0)) > 0


def test_unknown_settings_are_refused():
    with pytest.raises(PolicyError, match="unknown prediction"):
        process(prediction="velocity")
    with pytest.raises(PolicyError, match="steps or eta"):
        process(steps=51)
