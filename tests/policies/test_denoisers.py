"""The networks under the processes: one contract over every kind, and what each refuses."""

import pytest
import torch
from policy_examples import diffusion

from policies import registry
from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import seeded
from policies.registry import RegistryError

UNET = "policies.denoisers.ConditionalUNet"
TRANSFORMER = "policies.denoisers.ConditionalTransformer"
SMALL = {
    "mlp": {"class": "policies.denoisers.MLPDenoiser", "hidden": [16], "embedding": 8},
    "unet": {"class": UNET, "down_dims": [8, 16], "embedding": 8},
    "transformer": {"class": TRANSFORMER, "width": 8, "heads": 2, "layers": 2},
}


def build(kind, seed=0, horizon=8, **options):
    shape = {"features": 5, "horizon": horizon, "action_dimension": 2}
    given = {**SMALL[kind], **options}
    return registry.build(Denoiser, given, generator=seeded(seed), **shape)


def inputs(horizon=8, count=3):
    noisy = torch.randn(count, horizon, 2, generator=seeded(1))
    time = sinusoidal_embedding(torch.tensor([3.0]), 8)
    return noisy, time, torch.randn(count, 5, generator=seeded(2))


@pytest.mark.parametrize("kind", SMALL)
def test_weights_come_from_the_given_generator_only(kind):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(kind).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    other, another = build(kind).state_dict(), build(kind, seed=1).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], another[name]) for name in one)
    assert all(bool(tensor.isfinite().all()) for tensor in one.values())


@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_the_output_depends_on_chunk_time_and_observation(kind):
    denoiser = build(kind)
    noisy, time, features = inputs()
    output = denoiser(noisy, time, features)
    assert output.shape == noisy.shape
    torch.testing.assert_close(output, denoiser(noisy, time.expand(3, -1), features))
    later = sinusoidal_embedding(torch.tensor([40.0]), 8)
    for changed in ((noisy + 0.1, time, features), (noisy, later, features)):
        assert not torch.allclose(denoiser(*changed), output, atol=1e-5)
    # One observation in the batch changes its own chunk and no other.
    features[1] += 1
    changed = (denoiser(noisy, time, features) - output).abs().amax((1, 2))
    assert changed[1] > 1e-4
    assert float(changed[[0, 2]].max()) < 1e-5


@pytest.mark.parametrize("kind", SMALL)
def test_every_weight_learns(kind):
    denoiser = build(kind)
    denoiser(*inputs()).square().sum().backward()
    still = [n for n, p in denoiser.named_parameters() if not bool(p.grad.abs().sum() > 0)]
    assert still == []


@torch.no_grad()
def test_an_action_does_not_look_at_later_ones_in_the_transformer():
    denoiser = build("transformer")
    noisy, time, features = inputs()
    later = noisy.clone()
    later[:, 5:] += 1
    changed = (denoiser(later, time, features) - denoiser(noisy, time, features)).abs()
    assert float(changed[:, :5].max()) < 1e-6
    assert float(changed[:, 5:].amin()) > 1e-5


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_a_chunk_may_be_one_action(kind):
    assert build(kind, horizon=1)(*inputs(1)).shape == (3, 1, 2)


@pytest.mark.parametrize(
    ("horizon", "down_dims"), [(1, [32]), (2, [8, 16]), (8, [8, 16, 24]), (12, [16, 8, 8])]
)
def test_the_unet_takes_horizons_that_it_can_halve(horizon, down_dims):
    denoiser = build("unet", horizon=horizon, down_dims=down_dims)
    assert denoiser(*inputs(horizon)).shape == (3, horizon, 2)


@pytest.mark.parametrize(("horizon", "down_dims"), [(1, [8, 16]), (6, [8, 8, 8]), (7, [8, 8])])
def test_other_horizons_are_refused(horizon, down_dims):
    factor = 2 ** (len(down_dims) - 1)
    enough = -(-horizon // factor) * factor
    with pytest.raises(PolicyError, match=rf"a multiple of {factor}; next: .*horizon={enough},"):
        build("unet", horizon=horizon, down_dims=down_dims)


def test_misfits_are_named():
    with pytest.raises(RegistryError, match=r"no class 'ConditionalNet'.*'Cond.*UNet'"):
        diffusion(denoiser={"class": "policies.denoisers.ConditionalNet"})
    with pytest.raises(RegistryError, match=r"ConditionalUNet takes no argument 'hidden'"):
        diffusion(denoiser={"class": UNET, "hidden": [32]})
    with pytest.raises(RegistryError, match=r"DDIM is no Denoiser; .*denoisers.Denoiser"):
        diffusion(denoiser={"class": "policies.processes.ddim.DDIM"})
    with pytest.raises(PolicyError, match="groups"):
        build("unet", groups=3)
    with pytest.raises(PolicyError, match="two or more numbers"):
        build("unet", horizon=1, down_dims=[8])
    with pytest.raises(PolicyError, match=r"heads do not fit.*width 8, layers 2, heads 3"):
        build("transformer", heads=3)
    with pytest.raises(PolicyError, match="kernel 4"):
        build("unet", kernel=4)
