"""Environments with rewards, and episodes of a scripted expert in them."""

import numpy as np

from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.session import Session
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import RewardSource, sparse

CONFIG = compose(["task=reach"])


class After(RewardSource):
    """Sees success from a step on, whatever happens."""

    version = 70_000

    def __init__(self, step):
        self._at, self._step = step, 0

    def reset(self, observation):
        self._step = 0

    def judge(self, observation, task):
        self._step += 1
        return sparse(self._step >= self._at, task)


def rewarded(source, inbox=None, **options):
    env = make_env(CONFIG)
    heard = OperatorInbox(float("inf")) if inbox is None else inbox
    return env, Session(env, heard, source=source, **options)


def play(inner, env, seed=0, before_step=lambda step: None):
    """One episode of the expert: the steps' (reward, terminated, truncated, info)."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    expert = make_expert(CONFIG, inner)
    expert.reset(rng)
    steps = []
    while not steps or not (steps[-1][1] or steps[-1][2]):
        before_step(len(steps))
        steps.append(env.step(expert.act(rng))[1:])
    return steps


def inbox():
    return OperatorInbox(float("inf"))


def outcome(success=False, terminated=False):
    return Outcome(float(success), terminated or success, False, success)
