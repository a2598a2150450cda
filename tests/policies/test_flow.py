"""Flow matching where the exact velocity is known, and its grid."""

import math
from itertools import pairwise

import pytest
import torch
from policy_examples import flow
from torch import nn

from policies.errors import PolicyError
from policies.networks import seeded
from policies.processes.flow import TIME_SCALE, Flow, FlowSDE
from policies.registry import RegistryError

MEAN = 0.3
ALL = torch.ones(4096, 4, dtype=torch.bool)  # valid actions


class ExactVelocity(nn.Module):
    """E[x_1 - x_0 | x_t] for data N(MEAN, std²), noise N(0, 1): what a perfect network learns."""

    horizon, action_dimension, features, embedding = 4, 2, 5, 32

    def __init__(self, std):
        super().__init__()
        self.std = std
        self.asked = []

    def forward(self, noisy, time, features):
        # The slowest sine of the embedding is monotonic in time.
        slowest = time[:, self.embedding // 2 - 1].double()
        t = (torch.asin(slowest) / (TIME_SCALE * 1e-4)).float()
        self.asked.append(float(t[0]))
        t = t[:, None, None]
        variance = (1 - t).square() * self.std**2 + t.square()
        shift = noisy - (1 - t) * MEAN
        return (t - (1 - t) * self.std**2) / variance * shift - MEAN


def sampled(std, steps, count=64):
    process = Flow(ExactVelocity(std), steps=steps)
    features = torch.zeros(count, 5)
    noise = torch.randn(count, *process.noise_shape, generator=seeded(0))
    return process, process.sample(features, noise), noise[:, 0]


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_noise_goes_straight_to_a_single_point(steps):
    """Towards one point the paths are straight, and Euler is exact with any number of steps."""
    _, chain, noise = sampled(0.0, steps)
    assert chain.shape == (64, steps + 1, 4, 2)
    torch.testing.assert_close(chain[:, -1], torch.full_like(noise, MEAN), atol=1e-5, rtol=0)
    for index, time in enumerate(1 - index / steps for index in range(steps + 1)):
        on_path = (1 - time) * MEAN + time * noise
        torch.testing.assert_close(chain[:, index], on_path, atol=1e-5, rtol=0)


def test_a_gaussian_is_transported_to_a_known_gaussian():
    """The ODE keeps quantiles: x_0 = mean + std · noise; Euler's error falls as 1 / K."""
    errors = []
    for steps in (16, 32, 64):
        _, chain, noise = sampled(0.5, steps)
        errors.append(float((chain[:, -1] - (MEAN + 0.5 * noise)).abs().mean()))
    assert errors[-1] < 0.01
    for coarse, fine in pairwise(errors):
        assert 1.6 < coarse / fine < 2.5


def marginal_error(std, std_floor, steps, count=4096):
    """How far mean and standard deviation of an SDE's samples are from those of the data."""
    process = FlowSDE(ExactVelocity(std), steps=steps, std_floor=std_floor)
    noise = torch.randn(count, *process.noise_shape, generator=seeded(0))
    clean = process.sample(torch.zeros(count, 5), noise)[:, -1]
    return abs(float(clean.mean()) - MEAN), abs(float(clean.std()) - std)


def test_the_sde_gives_the_samples_of_the_ode():
    """Mean and standard deviation come to be those of the data, as those of the ODE do."""
    errors = [marginal_error(0.5, 0.0, steps) for steps in (4, 16, 64)]
    assert max(errors[-1]) < 0.01
    for (_, coarse), (_, fine) in pairwise(errors):
        assert fine < coarse / 2


@pytest.mark.parametrize("std_floor", [0.1, 0.3, 0.9])
def test_a_floor_widens_the_samples_and_does_not_throw_them_off(std_floor):
    mean, wider = marginal_error(0.05, std_floor, 10)
    assert mean < 0.05
    assert wider < 1.1 * std_floor


def test_a_step_of_the_sde_is_that_of_the_paper():
    process = FlowSDE(ExactVelocity(0.5), steps=4, noise=0.5)
    x, features, step = torch.randn(3, 4, 2, generator=seeded(1)), torch.zeros(3, 5), 1 / 4
    for index, t in enumerate([1.0, 0.75, 0.5]):  # the last one's mean is limited
        mean, std = process.transition(x, index, features)
        velocity = process.denoiser(x, process._times[index : index + 1], features)
        variance = 0.25 * t / (1 - min(t, 0.75))
        expected = x * (1 - variance * step / (2 * t))
        expected -= step * velocity * (1 + variance * (1 - t) / (2 * t))
        torch.testing.assert_close(mean, expected)
        assert float(std) == pytest.approx(math.sqrt(variance * step))


def test_the_exact_velocity_of_one_point_has_no_loss():
    process = Flow(ExactVelocity(0.0), steps=4)
    actions = torch.full((256, 4, 2), MEAN)
    assert float(process.loss(actions, torch.zeros(256, 5), ALL[:256], seeded(0))) < 1e-5
    elsewhere = process.loss(actions + 0.1, torch.zeros(256, 5), ALL[:256], seeded(0))
    assert float(elsewhere) > 0.01


def test_the_best_loss_is_that_of_the_exact_velocity():
    """Of all velocities; here against some that are a little faster or slower."""
    losses = []
    for factor in (0.9, 1.0, 1.1):
        process = Flow(ExactVelocity(0.5))
        exact = process.denoiser.forward
        process.denoiser.forward = lambda *a, exact=exact, factor=factor: factor * exact(*a)
        actions = MEAN + 0.5 * torch.randn(4096, 4, 2, generator=seeded(1))
        losses.append(float(process.loss(actions, torch.zeros(4096, 5), ALL, seeded(0))))
    assert losses[1] == min(losses)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_sampler_and_transition_share_one_grid(steps):
    process, chain, _ = sampled(0.5, steps)
    expected = [1 - index / steps for index in range(steps)]
    assert process.denoiser.asked == pytest.approx(expected, abs=1e-5)
    features = torch.zeros(len(chain), 5)
    for index in range(steps):
        mean, std = process.transition(chain[:, index], index, features)
        assert torch.equal(mean, chain[:, index + 1])
        assert float(std) == 0
    with pytest.raises(PolicyError, match=r"deterministic and has no density.*eta > 0"):
        process.log_prob(chain, features)


def test_a_chunk_of_one_action_is_the_single_step_method():
    """H = 1: each action of a longer chunk is transported as it would be alone."""
    _, chain, _ = sampled(0.5, 5)
    single = Flow(ExactVelocity(0.5), steps=5)
    single.horizon = 1
    for action in range(4):
        start = chain[:, :1, action : action + 1]
        alone = single.sample(torch.zeros(len(chain), 5), start)
        torch.testing.assert_close(alone, chain[:, :, action : action + 1])


def test_padded_actions_are_not_charged():
    process = Flow(ExactVelocity(0.0))
    actions = torch.full((32, 4, 2), MEAN)
    actions[:, 2:] = 50.0
    valid = torch.tensor([True, True, False, False]).expand(32, 4)
    assert float(process.loss(actions, torch.zeros(32, 5), valid, seeded(0))) < 1e-4


def test_misfits_are_named():
    with pytest.raises(PolicyError, match="at least one step"):
        flow(steps=0)
    with pytest.raises(RegistryError, match=r"flow.Flow takes no argument 'eta'; .*'steps'"):
        flow(eta=0.5)
    with pytest.raises(RegistryError, match=r"no class 'DDPM'; .*mean 'DDIM'"):
        flow(process="policies.processes.ddim.DDPM")
    assert math.prod(flow().noise_shape) == 8 * 3  # one draw: the ODE takes no further noise
