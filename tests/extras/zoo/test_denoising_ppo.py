"""PPO on the steps of a chain: what must hold whatever the process and the settings."""

import numpy as np
import pytest
import torch
from algorithm_examples import CRITIC_ONLY, DIMENSION, KEYS, batch, cloned, make, weights

from policies.behaviour import Behaviour, Interface
from policies.diffusion import DiffusionPolicy
from policies.runner import PolicyRunner
from robot_rl.extras.zoo.denoising_ppo import ChainSettings
from robot_rl.extras.zoo.online_ppo import (
    Chunks,
    OnlinePPO,
    OnlineSettings,
    advantages,
    executed_chunks,
)
from robot_rl.learning.algorithms.base import AlgorithmError

CHAIN = {
    "transitions": None,
    "reduce": "sum",
    "joint": False,
    "executed_only": False,
    "clip": [0.2, 0.2],
    "clip_updates": 0,
    "denoising_discount": 1.0,
    "log_density_range": None,
    "gradient_clip": 0.5,
}
REINFLOW = {"joint": True, "reduce": "mean", "clip": [0.01, 0.01]}
DPPO = {
    "transitions": 2,
    "reduce": "mean",
    "clip": [0.001, 0.01],
    "denoising_discount": 0.99,
    "log_density_range": [-5.0, 2.0],
    "executed_only": True,
}
SETTINGS = {
    "trace": 0.95,
    "epochs": 2,
    "batch_size": 16,
    "actor_rate": 1e-4,
    "critic_rate": 1e-3,
    "critic_hidden": [16],
    "critic_only_updates": 0,
    "value_clip": 0.2,
    "exploration_std": 0.1,
}


def flow():
    arrays = {name: np.random.default_rng(0).uniform(-1, 1, (64, w)) for name, w in KEYS.items()}
    arrays["action"] = np.random.default_rng(1).uniform(-0.8, 0.8, (64, DIMENSION))
    options = {"process": "policies.processes.flow.Flow", "steps": 3, "denoiser": {"hidden": [16]}}
    generator = torch.Generator().manual_seed(0)
    return DiffusionPolicy.create(arrays, KEYS, generator=generator, observation_steps=2, **options)


@pytest.mark.parametrize("base", [cloned, flow])
@pytest.mark.parametrize("chain", [{}, DPPO, REINFLOW])
def test_the_ratio_is_one_until_the_policy_has_changed(base, chain):
    changes = [("settings.actor_rate", 0.0)]
    changes += [
        (f"settings.chain.{name}", str(value).replace("None", "null"))
        for name, value in chain.items()
    ]
    algorithm = make("denoising_ppo", changes=changes, base=base())
    for seed in range(CRITIC_ONLY + 3):
        metrics = algorithm.update(batch(algorithm, seed))
    assert float(metrics["log_ratio"]) == 0.0
    assert float(metrics["clipped_share"]) == 0.0


def test_a_policy_moves_towards_what_its_critics_prefer():
    algorithm = make("denoising_ppo", changes=[("settings.actor_rate", 0.00001)])
    content = batch(algorithm)
    before = weights(algorithm.policy())
    metrics = [algorithm.update(content) for _ in range(CRITIC_ONLY + 6)][-1]
    after = weights(algorithm.policy())
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert 0 < float(metrics["log_ratio"]) < 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reduce": "mean"}, "mean of log-densities"),
        ({"clip": [0.01, 0.01]}, "sum of log-densities"),
        ({"reduce": "max"}, "'reduce' is unknown"),
        ({"transitions": 0}, "transitions"),
    ],
)
def test_a_clip_range_that_belongs_to_another_reduction_is_refused(changes, named):
    with pytest.raises(AlgorithmError, match=named):
        ChainSettings(**CHAIN | changes)


def chunks(reward, discount, continued):
    count = len(reward)
    tensors = (torch.tensor(column) for column in (reward, discount))
    features = torch.zeros(count, 1)
    return Chunks(
        features, torch.zeros(count, 2, 1, 1), *tensors, features, torch.tensor(continued)
    )


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not():
    value, following = torch.tensor([0.5, 0.6]), torch.tensor([0.6, 0.7])
    truncated = advantages(chunks([0.0, 0.0], [0.9, 0.9], [True, False]), value, following, 0.95)
    last = 0.9 * 0.7 - 0.6
    assert truncated.tolist() == pytest.approx([0.9 * 0.6 - 0.5 + 0.95 * 0.9 * last, last])
    ended = advantages(chunks([0.0, 1.0], [0.9, 0.0], [True, False]), value, following, 0.95)
    assert ended.tolist() == pytest.approx([0.9 * 0.6 - 0.5 + 0.95 * 0.9 * 0.4, 0.4])


def test_chunks_of_one_action_have_the_advantages_of_single_steps():
    rng, gamma, trace = np.random.default_rng(0), 0.97, 0.9
    rewards, values = rng.random(6).astype("f4"), rng.random(7).astype("f4")
    expected = np.zeros(7)
    for at in range(5, -1, -1):  # Schulman et al. 2016, eq. 16
        delta = rewards[at] + gamma * values[at + 1] * (at < 5) - values[at]
        expected[at] = delta + gamma * trace * expected[at + 1]
    discount = [gamma] * 5 + [0.0]
    given = chunks(rewards.tolist(), discount, [True] * 5 + [False])
    found = advantages(given, torch.tensor(values[:6]), torch.tensor(values[1:]), trace)
    assert found.tolist() == pytest.approx(expected[:6].tolist(), abs=1e-6)


def played(behaviour, seed, steps=11, operated=()):
    """Columns of an episode in which an operator drives at some steps."""
    rng, runner = np.random.default_rng(seed), PolicyRunner(behaviour)
    seen = {name: rng.uniform(-1, 1, (steps + 1, w)).astype("f4") for name, w in KEYS.items()}
    columns = {name: np.zeros((steps + 1, *shape), kind) for name, shape, kind in COLUMNS}
    runner.reset(seeds=[seed])
    for at in range(steps):
        decision = runner.act({name: column[at : at + 1] for name, column in seen.items()})
        columns["policy_action"][at] = decision.action[0]
        columns["chunk_index"][at] = decision.chunk_index[0]
        if at in operated:
            columns["intervened"][at] = True
            runner.observe_override()
    columns["reward"][:steps] = rng.random(steps)
    columns["is_last"][steps] = True
    return {**seen, **columns}


COLUMNS = (
    ("policy_action", (DIMENSION,), "f4"),
    ("chunk_index", (), "i2"),
    ("intervened", (), "?"),
    ("reward", (), "f4"),
    ("terminated", (), "?"),
    ("is_last", (), "?"),
)


@pytest.mark.parametrize("base", [cloned, flow])
def test_chains_are_made_again_from_the_episodes_seed(base):
    ppo = OnlinePPO(base(), OnlineSettings(**SETTINGS), ChainSettings(**CHAIN), 0)
    interface = Interface("lift", 10.0, ("x", "gripper"))
    behaviour = Behaviour(ppo.acting_policy(), interface, execute_steps=4)
    columns = played(behaviour, seed=3)
    columns["terminated"][10] = True
    found = executed_chunks(columns, behaviour, 3, "", 0.9)
    assert found.discount.tolist() == pytest.approx([0.9**4, 0.9**4, 0.0])
    powers = 0.9 ** np.arange(4)
    assert float(found.reward[0]) == pytest.approx(float(powers @ columns["reward"][:4]))
    assert found.continued.tolist() == [True, True, False]
    with pytest.raises(AlgorithmError, match=r"not what the policy makes.*got: .* apart"):
        executed_chunks(columns, behaviour, 4, "", 0.9)
    columns = played(behaviour, seed=3, operated=(5, 6))
    found = executed_chunks(columns, behaviour, 3, "", 0.9)
    # Plans at 0, 4 (overridden at 5), 6 (overridden), and at 7 after the hand-back.
    assert found.discount.tolist() == pytest.approx([0.9**4, 0.9**4])
    assert found.continued.tolist() == [False, False]


@pytest.mark.parametrize("chain", [CHAIN, CHAIN | DPPO, CHAIN | REINFLOW])
def test_online_learning_begins_where_the_policy_acted_and_goes_on_bit_for_bit(chain):
    ppo = OnlinePPO(cloned(), OnlineSettings(**SETTINGS), ChainSettings(**chain), 0)
    interface = Interface("lift", 10.0, ("x", "gripper"))
    behaviour = Behaviour(ppo.acting_policy(), interface, execute_steps=4)
    found = executed_chunks(played(behaviour, seed=1, steps=60), behaviour, 1, "", 0.9)
    still = OnlinePPO(
        cloned(), OnlineSettings(**SETTINGS | {"actor_rate": 0.0}), ChainSettings(**chain), 0
    )
    metrics = still.learn(found, 4)
    assert metrics["log_ratio"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["clipped_share"] == 0.0
    ppo.learn(found, 4)
    resumed = OnlinePPO(cloned(), OnlineSettings(**SETTINGS), ChainSettings(**chain), 5)
    resumed.load_state_dict(ppo.state_dict())
    assert resumed.learn(found, 4) == ppo.learn(found, 4)
