"""The discrete gripper beside a Gaussian arm."""

import pytest
import torch
from policy_examples import behaviour, observations
from zoo_policies import gripper

from policies.networks import seeded
from policies.runner import PolicyRunner
from robot_rl.extras.zoo.gripper import CHOICES, LAST_COMMAND, GaussianGripperPolicy


def choosing(choice, **options):
    """A policy whose critic always prefers one choice."""
    policy = gripper(**options)
    with torch.no_grad():
        policy.critic.network[-1].weight.zero_()
        policy.critic.network[-1].bias.copy_(torch.eye(3)[CHOICES.index(choice)])
    return policy


def seen(latest):
    """Observations after a step in which the gripper, the last column, was told `latest`."""
    seen = observations(len(latest))
    seen[LAST_COMMAND][:, 2] = latest
    return seen


@pytest.mark.parametrize(
    ("choice", "told"), [("open", [-1, -1, -1]), ("stay", [1, -1, 1]), ("close", [1, 1, 1])]
)
def test_open_and_close_are_absolute_and_stay_repeats_the_last_command(choice, told):
    action = choosing(choice).act(seen([0.7, -0.2, 0.1]), None, None)
    assert action.shape == (3, 3)
    assert action[:, 2].tolist() == told


@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_arm_keeps_its_columns_wherever_the_gripper_is(column):
    policy = choosing("close")
    moved = GaussianGripperPolicy(policy.encoder, policy.actor, policy.critic, column, 0.3)
    noise = torch.randn(4, 3, generator=seeded(0))
    others = [index for index in range(3) if index != column]
    for given in (None, noise):
        action = moved.act(observations(4), None, given)
        arm = noise[:, others] if given is not None else None
        features = moved.encoder(observations(4))
        expected = moved.actor.mean(features)
        if arm is not None:
            expected = moved.actor.sample(features, noise=arm)[0]
        assert torch.equal(action[:, others], expected)
        assert action[:, column].abs().eq(1).all()


@pytest.mark.parametrize("exploration", [0.0, 0.3, 1.0])
def test_exploration_is_epsilon_greedy_over_the_three_choices(exploration):
    policy = choosing("close", exploration=exploration)
    count = 6000
    noise = torch.randn(count, 3, generator=seeded(0))
    opened = policy.act(seen([-1.0] * count), None, noise)[:, 2] < 0
    # "open" and, with an open gripper, "stay" depart from the greedy choice.
    assert float(opened.float().mean()) == pytest.approx(exploration * 2 / 3, abs=0.02)
    opened = policy.act(seen([1.0] * count), None, noise)[:, 2] < 0
    assert float(opened.float().mean()) == pytest.approx(exploration / 3, abs=0.02)


def test_an_episode_seed_repeats_the_exploration():
    courses = []
    for seed in (1, 1, 2):
        runner = PolicyRunner(behaviour(choosing("close", exploration=0.5)).exploring("sample"))
        runner.reset(seeds=[seed])
        courses.append([runner.act(observations(1, step)).action[0, 2] for step in range(30)])
    assert courses[0] == courses[1] != courses[2]
