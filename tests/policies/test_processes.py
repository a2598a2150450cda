"""One contract over every process, and the denoising process against diffusers."""

import json

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from policy_examples import KEYS, diffusion, recorded

from policies.denoisers import MLPDenoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import seeded, standard_normal
from policies.processes.base import build_process, masked_mean_square
from policies.processes.ddim import DDIM
from policies.processes.flow import Flow, FlowSDE
from robot_rl.extras.zoo.flow_noise import FlowNoise

FLOOR = {"eta": 1.0, "std_bounds": (0.0067, 0.1)}
DRAWN = {
    "DDIM": lambda **o: process(**FLOOR, **o),
    "DDIM that predicts the noise": lambda **o: process(**FLOOR, prediction="epsilon", **o),
    "DDPM with a floor": lambda **o: process(**FLOOR, steps=20, train_steps=20, **o),
    "DDIM exploring": lambda **o: process(**o).exploring(0.2),
    "Flow exploring": lambda **o: process(Flow, **o).exploring(0.2),
    "Flow-SDE": lambda **o: process(FlowSDE, **o),
    "Flow-SDE of one step": lambda **o: process(FlowSDE, steps=1, **o),
    "Flow-Noise": lambda **o: noisy(**o),
    "Flow-Noise exploring": lambda **o: noisy(**o).exploring(0.1),
}
ALL = {"DDIM of η = 0": lambda **o: process(**o), "Flow": lambda **o: process(Flow, **o), **DRAWN}
COUNT = 3


def process(kind=DDIM, horizon=4, **options):
    return kind(MLPDenoiser(5, horizon, 2, generator=seeded(0), hidden=[32]), **options)


def noisy(**options):
    """A Flow-Noise whose standard deviations differ, as after some training."""
    made = process(FlowNoise, **options)
    with torch.no_grad():
        last = made.noise_network[-1]
        last.weight.copy_(standard_normal(last.weight.shape, last.weight, seeded(3)))
    return made


def sampled(mine, seed=2):
    """Features, noise and the chain."""
    features = torch.randn(COUNT, 5, generator=seeded(1))
    noise = torch.randn(COUNT, *mine.noise_shape, generator=seeded(seed))
    with torch.no_grad():
        return features, noise, mine.sample(features, noise)


def each(kinds):
    return pytest.mark.parametrize("make", kinds.values(), ids=kinds.keys())


@each(ALL)
@torch.no_grad()
def test_an_index_for_all_and_one_for_each_row_give_the_same_numbers(make):
    mine = make()
    features, _, chain = sampled(mine)
    of_all = [mine.transition(chain[:, i], i, features) for i in range(mine.steps)]
    for index, (mean, std) in enumerate(of_all):
        for_each = mine.transition(chain[:, index], torch.full((COUNT,), index), features)
        assert torch.equal(for_each[0], mean)
        assert torch.equal(for_each[1].expand_as(mean), std.expand_as(mean))
    rows, mixed = torch.arange(COUNT), torch.arange(COUNT) * 7 % mine.steps
    mean, std = mine.transition(chain[rows, mixed], mixed, features)
    for row, index in enumerate(mixed.tolist()):
        expected, expected_std = of_all[index]
        torch.testing.assert_close(mean[row], expected[row])
        torch.testing.assert_close(
            std.expand_as(mean)[row], expected_std.expand_as(mean)[row], atol=0, rtol=1e-6
        )


@each(ALL)
def test_one_noise_gives_one_chain_and_another_gives_another(make):
    mine = make()
    _, noise, chain = sampled(mine)
    assert torch.equal(chain[:, 0], noise[:, 0])
    assert torch.equal(chain, sampled(make())[2])
    assert not torch.equal(chain[:, -1], sampled(mine, seed=9)[2][:, -1])


@each(ALL)
@torch.no_grad()
def test_the_noiseless_process_is_deterministic_and_on_the_same_network(make):
    mine = make()
    still = mine.noiseless()
    features, noise, _ = sampled(mine)
    assert still.deterministic
    assert still.denoiser is mine.denoiser
    assert still.noise_shape == (1, 4, 2)
    assert still.steps == mine.steps
    chain = still.sample(features, noise[:, :1])
    for index in range(still.steps):
        mean, std = still.transition(chain[:, index], index, features)
        assert float(std) == 0
        assert torch.equal(mean, chain[:, index + 1])
    again = still.noiseless()
    assert type(again) is type(still)
    assert torch.equal(chain, again.sample(features, noise[:, :1]))


@each(ALL)
@torch.no_grad()
def test_exploring_draws_every_transition_on_the_same_network(make):
    mine = make()
    exploring = mine.exploring(0.3)
    features, _, chain = sampled(exploring)
    assert exploring.denoiser is mine.denoiser
    assert not exploring.deterministic
    for index in range(exploring.steps):
        _, std = exploring.transition(chain[:, index], index, features)
        assert float(std.min()) >= 0.3 - 1e-6
    assert bool(exploring.log_prob(chain, features).isfinite().all())


@each(ALL)
def test_a_saved_process_is_the_same_process(make):
    mine = make()
    config = json.loads(json.dumps(mine.config))
    again = build_process(config, 5, seeded(8))
    again.load_state_dict(mine.state_dict())
    assert type(again) is type(mine)
    assert again.config == mine.config
    assert torch.equal(sampled(again)[2], sampled(mine)[2])
    # What a process computes by is no weight: varied processes fit one another's states.
    assert mine.state_dict().keys() == mine.varied(steps=1).state_dict().keys()


@each(DRAWN)
@pytest.mark.parametrize("horizon", [1, 4])
@torch.no_grad()
def test_the_density_of_a_chain_is_that_of_its_draws(make, horizon):
    """So the policy-gradient ratio of an unchanged policy is 1 at every step of the chain."""
    mine = make(horizon=horizon)
    features, noise, chain = sampled(mine)
    score = mine.log_prob(chain, features)
    assert score.shape == (COUNT, mine.steps, horizon, 2)
    assert torch.equal(score, mine.log_prob(chain, features))
    for index in range(mine.steps):
        mean, std = mine.transition(chain[:, index], index, features)
        drawn = torch.distributions.Normal(mean, std.expand_as(mean)).log_prob(chain[:, index + 1])
        torch.testing.assert_close(score[:, index], drawn, atol=1e-3, rtol=1e-3)
        normal = torch.distributions.Normal(0.0, 1.0).log_prob(noise[:, index + 1]) - std.log()
        torch.testing.assert_close(score[:, index], normal, atol=2e-3, rtol=1e-3)


@each(DRAWN)
@torch.no_grad()
def test_chosen_transitions_are_scored_alone(make):
    mine = make()
    features, _, chain = sampled(mine)
    every = mine.log_prob(chain, features)
    last = list(range(mine.steps))[-3:]
    torch.testing.assert_close(mine.log_prob(chain, features, last), every[:, last])
    rows = torch.arange(COUNT)[:, None]
    own = torch.stack([torch.arange(COUNT), torch.arange(COUNT) * 3], 1) % mine.steps
    torch.testing.assert_close(mine.log_prob(chain, features, own), every[rows, own])
    with pytest.raises(PolicyError, match=rf"no such transition.*0 ... {mine.steps - 1}"):
        mine.log_prob(chain, features, [mine.steps])


def test_densities_are_float32_whatever_the_network_computes_in():
    mine = process(FlowSDE)
    features, _, chain = sampled(mine)
    with torch.autocast("cpu", torch.bfloat16):
        mean, _ = mine.transition(chain[:, 0], 0, features)
        score = mine.log_prob(chain, features)
    assert mean.dtype is torch.float32
    assert score.dtype is torch.float32
    half = process(FlowSDE).to(torch.bfloat16)
    assert half.log_prob(chain.bfloat16(), features.bfloat16()).dtype is torch.float32


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


@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
@torch.no_grad()
def test_all_steps_with_eta_1_are_ddpm(prediction):
    """Mean and variance are those of the posterior, where the clean chunk is not clamped.

    Where it is, DDPM also derives the noise anew, and DDIM does not (in diffusers either).
    """
    mine = process(eta=1.0, steps=50, prediction=prediction)
    reference = DDPMScheduler(
        50, beta_schedule="squaredcos_cap_v2", prediction_type=prediction, clip_sample=True
    )
    x = torch.randn(COUNT, 4, 2, generator=seeded(1))
    features = torch.zeros(COUNT, 5)
    clean = 0.9 * torch.rand(COUNT, 4, 2, generator=seeded(2))
    for index, step in enumerate(reference.timesteps.tolist()):
        product = reference.alphas_cumprod[step]
        noise = (x - product.sqrt() * clean) / (1 - product).sqrt()
        output = clean if prediction == "sample" else noise
        mine.denoiser.forward = lambda *_, output=output: output
        mean, std = mine.transition(x, index, features)
        expected = reference.step(output, step, x, generator=seeded(3)).prev_sample
        drawn = torch.randn(x.shape, generator=seeded(3))
        x = mean + std * drawn
        torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)


def test_a_deterministic_chain_has_no_density():
    mine = process(eta=0.0)
    features = torch.zeros(1, 5)
    chain = mine.sample(features, torch.zeros(1, *mine.noise_shape))
    with pytest.raises(PolicyError, match=r"deterministic and has no density.*`exploring`"):
        mine.log_prob(chain, features)
    # The last transition of η = 1 has no noise either, the others have.
    drawn = process(eta=1.0)
    features, _, chain = sampled(drawn)
    assert drawn.log_prob(chain, features, range(9)).shape == (COUNT, 9, 4, 2)
    with pytest.raises(PolicyError, match="has no density"):
        drawn.log_prob(chain, features)


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
    with pytest.raises(PolicyError, match=r"noise is out of range.*process Flow for none"):
        process(FlowSDE, noise=0.0)
    for bounds in ([0.2, 0.1], [0.0, 0.1], [0.2]):
        with pytest.raises(PolicyError, match="bounds of the flow's noise"):
            process(FlowNoise, std_bounds=bounds)
    for kind in (Flow, FlowSDE, FlowNoise):
        with pytest.raises(PolicyError, match="at least one step"):
            process(kind, steps=0)
