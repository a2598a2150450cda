"""Configured environments and episodes, shared by the tests of this folder."""

from functools import cache
from typing import NamedTuple

import numpy as np

from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_expert

PERFECT = (
    "task.expert.imperfections.offset=0.0",
    "task.expert.imperfections.yaw_offset=0.0",
    "task.expert.imperfections.action_noise=0.0",
    "task.expert.imperfections.hesitation=0.0",
    "task.expert.imperfections.speed_low=1.0",
)


class Step(NamedTuple):
    action: np.ndarray
    observation: dict
    reward: float
    terminated: bool
    truncated: bool
    info: dict


@cache
def configuration(*overrides):
    return compose(overrides)


def environment(task, *overrides):
    return make_env(configuration(f"task={task}", *overrides))


def expert_episode(env, expert, seed):
    """Run one episode with the expert; returns the first observation and the steps."""
    rng = np.random.default_rng(seed)
    first, _ = env.reset(seed=seed)
    expert.reset(rng)
    steps = []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        action = expert.act(rng)
        steps.append(Step(action, *env.step(action)))
    return first, steps


@cache
def expert_episodes(task, count, *overrides):
    """(first observation, steps) of each of `count` episodes."""
    config = configuration(f"task={task}", *overrides)
    env = make_env(config)
    expert = make_expert(config, env)
    return [expert_episode(env, expert, seed) for seed in range(count)]


def successes(task, count, *overrides):
    return sum(steps[-1].terminated for _, steps in expert_episodes(task, count, *overrides))


def replay(env, seed, actions):
    """All observations and rewards of an episode with given actions."""
    first, _ = env.reset(seed=seed)
    observations, rewards = [first], []
    for action in actions:
        observation, reward, *_ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards


def assert_identical(left, right):
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].tobytes() == other[name].tobytes(), name
