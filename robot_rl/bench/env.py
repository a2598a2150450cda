"""Simulation speed with and without cameras; stepped clock, one thread."""

from __future__ import annotations

import time

import numpy as np
from omegaconf import DictConfig

from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.sim.robot import SimRobot
from robot_rl.env.task import Expert
from robot_rl.errors import RobotRLError

_ROUNDS = 5
_STEPS = 1000
_RENDERED_STEPS = 200


def run(config: DictConfig) -> dict[str, object]:
    """Measure control steps per second with the expert acting, so that contacts are included.

    Results are medians over rounds of 1,000 steps, and of 200 steps with the cameras of
    ``observation=pixels``. They include resets but not the expert's time. Raises `CameraError` if
    rendering is not possible.
    """
    rate, physics_rate = _rate(config, _STEPS)
    pixels = compose([f"task={config.choices.task}", "observation=pixels"])
    return {
        "state_steps_per_second": rate,
        "physics_steps_per_second": rate * physics_rate / float(config.control_rate_hz),
        "rendered_steps_per_second": _rate(pixels, _RENDERED_STEPS)[0],
        "task": config.task.name,
    }


def _rate(config: DictConfig, steps: int) -> tuple[float, float]:
    """Return control steps per second of wall time, and physics steps per simulated second."""
    env = make_env(config)
    if not isinstance(env.robot, SimRobot):
        raise RobotRLError(
            "bench env measures the simulated arm",
            got=f"robot={config.choices.robot}",
            expected="robot=sim",
        )
    expert = make_expert(config, env)
    rates = [steps / _round(env, expert, number, steps) for number in range(_ROUNDS)]
    env.close()
    return float(np.median(rates)), env.robot.world.physics_rate_hz


def _round(env: RobotEnv, expert: Expert, number: int, steps: int) -> float:
    rng = np.random.default_rng(number)
    spent = 0.0
    over = True
    for step in range(steps):
        if over:
            started = time.perf_counter()
            env.reset(seed=number * steps + step)
            spent += time.perf_counter() - started
            expert.reset(rng)
        action = expert.act(rng)
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        spent += time.perf_counter() - started
        over = terminated or truncated
    return spent
