"""What the algorithms compute that learn from recorded data."""

import numpy as np
import pytest
import torch
from algorithm_examples import DIMENSION, SIZE, acts, batch, cloned, make, same
from algorithm_examples import weights as copied

from policies import registry
from policies.critics import CriticEnsemble
from policies.networks import seeded
from policies.processes.flow import Flow
from robot_rl.extras.zoo.best_of_n import BestOfN
from robot_rl.extras.zoo.implicit_q import expectile_loss
from robot_rl.learning.algorithms.base import AlgorithmError


@pytest.mark.parametrize(("expectile", "expected"), [(0.5, 0.5), (0.9, 0.9)])
def test_the_expectile_of_zeros_and_ones(expectile, expected):
    """Half are 1: ω (1 - v) = (1 - ω) v where v is ω."""
    value = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([value], 0.01)
    samples = torch.tensor([0.0, 1.0])
    for _ in range(500):
        optimizer.zero_grad()
        expectile_loss(samples - value, expectile).backward()
        optimizer.step()
    assert float(value.detach()) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("source", "returned", "ended", "expected"),
    [
        (0, 0.0, False, True),
        (2, 0.0, False, True),
        (1, 0.5, True, True),
        (1, 0.0, True, False),
        (1, 0.5, False, False),
    ],
)
def test_filtered_cloning_imitates_what_has_succeeded(source, returned, ended, expected):
    algorithm = make("filtered_cloning")
    content = batch(algorithm, source=np.full(SIZE, source, "u1"))
    content["return"] = np.full(SIZE, returned, "f4")
    content["return/valid"] = np.full(SIZE, ended)
    assert float(algorithm.update(content)["imitated"]) == float(expected)


def test_advantages_weigh_what_is_imitated():
    """Rewarded are actions near (0.6, 0.6), others as often: the clone moves to the rewarded."""
    changes = [
        ("settings.critic_rate", 0.01),
        ("settings.actor_rate", 0.003),
        ("settings.average_rate", 0.05),
        ("settings.imitation_weight", 0.0),
    ]
    algorithm = make("advantage_weighted", changes=changes)
    good = np.arange(SIZE) % 4 == 0
    action = np.where(good[:, None], 0.6, -0.6).astype("f4").repeat(DIMENSION, 1)
    columns = {"reward": good.astype("f4"), "discount": np.zeros(SIZE, "f4"), "action": action}
    for seed in range(300):
        algorithm.update(batch(algorithm, seed, **columns))
    assert float(acts(algorithm.policy())[0].mean()) > 0.4  # their mean is -0.3


def test_the_best_of_n_chunks_is_the_one_of_greatest_value():
    policy = cloned()
    critics = CriticEnsemble(policy.encoder.features + DIMENSION, (16,), 3, seeded(1))
    best = BestOfN(policy.under(policy.process.exploring(0.3)), critics, 5)
    rng = np.random.default_rng(0)
    seen = {n: rng.uniform(-1, 1, (4, 1, w)).astype("f4") for n, w in policy.encoder.keys.items()}
    noise = torch.randn((4, *best.noise_shape), generator=seeded(2))
    features = policy.encoder(seen)
    with torch.no_grad():
        chosen = best.plan(seen, noise).actions
        every = torch.stack([best.sampled.plan(seen, noise[:, at]).actions for at in range(5)], 1)
        values = [critics(torch.cat([features, every[:, at, 0]], -1)).mean(0) for at in range(5)]
    for row, at in enumerate(torch.stack(values, 1).argmax(1).tolist()):
        torch.testing.assert_close(chosen[row], every[row, at])


@pytest.mark.slow
def test_conservative_critics_doubt_what_is_not_in_the_data_until_online_learning():
    """All actions of the data are near 0.6, and return nothing less than others would."""
    apart = []
    for weight in (0.0, 5.0):
        changes = [
            ("schedule.offline_updates", 150),
            ("settings.critic_rate", 0.003),
            ("settings.conservative.weight", weight),
        ]
        algorithm = make("wsrl", changes=changes)
        columns = {
            "action": np.full((SIZE, DIMENSION), 0.6, "f4"),
            "reward": np.full(SIZE, 0.5, "f4"),
            "discount": np.zeros(SIZE, "f4"),
        }
        for seed in range(150):
            metrics = algorithm.update(batch(algorithm, seed, **columns))
        assert ("conservatism" in metrics) == (weight > 0)
        content = batch(algorithm, **columns)
        with torch.no_grad():
            features = algorithm.encoder({name: content[name] for name in algorithm.encoder.keys})
            inside, outside = (
                algorithm.critics(torch.cat([features, torch.full((SIZE, DIMENSION), a)], -1))
                for a in (0.6, -0.6)
            )
        apart.append(float((inside - outside).mean()))
        assert "conservatism" not in algorithm.update(content)  # the next update is online
    assert apart[1] > apart[0] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["dsrl", "dsrl_plain"])
def test_noise_steers_the_clone_to_what_its_critics_value(choice):
    """The chunks of this flow are nearly their noise; reward is what the first column tells."""
    changes = [
        ("settings.critic_rate", 0.003),
        ("settings.actor_rate", 0.003),
        ("settings.average_rate", 0.05),
    ]
    base = cloned(process=registry.name_of(Flow))
    algorithm = make(choice, changes=changes, base=base)
    rng = np.random.default_rng(0)
    for seed in range(250):
        latent = rng.uniform(-1, 1, (SIZE, DIMENSION * base.horizon)).astype("f4")
        action = latent[:, :DIMENSION]
        columns = {"action": action, "plan/latent": latent, "reward": action[:, 0] / 2 + 0.5}
        content = batch(algorithm, seed, discount=np.zeros(SIZE, "f4"), **columns)
        algorithm.update(content)
    steered, features = algorithm.policy().policy, algorithm.average.encoder(content)
    drawn = torch.randn((SIZE, steered.horizon * DIMENSION), generator=seeded(0))
    with torch.no_grad():
        chosen = steered.plan(content, drawn).actions[:, 0, 0]
        by_chance = steered.chunks(features, drawn)[:, 0, 0]
    assert float(chosen.mean()) > float(by_chance.mean()) + float(by_chance.std())
    assert same(copied(algorithm.average), copied(base))  # no weight has changed


@pytest.mark.parametrize(
    ("source", "latent", "learns"), [(1, 0.5, True), (1, 0.0, False), (0, 0.5, False)]
)
def test_plain_steering_learns_only_where_the_policy_has_chosen_a_latent(source, latent, learns):
    algorithm = make("dsrl_plain")
    before = copied(algorithm.critics)
    content = batch(algorithm, source=np.full(SIZE, source, "u1"))
    content["plan/latent"] = np.full_like(content["plan/latent"], latent)
    algorithm.update(content)
    assert same(before, copied(algorithm.critics)) != learns


@pytest.mark.parametrize(
    ("name", "value"), [("n_step", 3), ("demonstration_share", 0.5), ("offline_updates", 200)]
)
def test_plain_steering_refuses_what_has_no_latent(name, value):
    told = rf"got: algorithm.schedule.{name}={value}.*; next: leave it out"
    with pytest.raises(AlgorithmError, match=told):
        make("dsrl_plain", changes=[(f"schedule.{name}", value)])
