"""How fast the simulation steps, state observations, stepped clock, one thread."""

from __future__ import annotations

import time

import numpy as np
from omegaconf import DictConfig

from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.sim.task import ScriptedExpert

_ROUNDS = 5
_STEPS = 1000


def run(config: DictConfig) -> dict[str, object]:
    """Measure control steps per second with the expert acting, so that contacts are included.

    Returns:
        `state_steps_per_second`: median over rounds of 1,000 steps, resets included and the
        expert's own time taken out; `physics_steps_per_second`; `task`.
    """
    env = make_env(config)
    expert = make_expert(config, env)
    rates = [_STEPS / _round(env, expert, number) for number in range(_ROUNDS)]
    rate = float(np.median(rates))
    substeps = env.clock.period * expert.task.world.physics_rate_hz
    return {
        "state_steps_per_second": rate,
        "physics_steps_per_second": rate * substeps,
        "task": config.task.name,
    }


def _round(env: RobotEnv, expert: ScriptedExpert, number: int) -> float:
    rng = np.random.default_rng(number)
    spent = 0.0
    over = True
    for step in range(_STEPS):
        if over:
            started = time.perf_counter()
            env.reset(seed=number * _STEPS + step)
            spent += time.perf_counter() - started
            expert.reset(rng)
        action = expert.act(rng)
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        spent += time.perf_counter() - started
        over = terminated or truncated
    return spent
