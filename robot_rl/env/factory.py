"""From a configuration to an environment: the one place that joins task, robot and clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robot_rl import devices
from robot_rl.env.rate import make_clock
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.sim.task import ScriptedExpert


def make_env(config: Mapping[str, Any]) -> RobotEnv:
    """Make the environment that `task`, `robot`, `observation` and the clock describe."""
    task = devices.make(config["task"]["environment"])
    robot = devices.make(config["robot"], task=task)
    clock = make_clock(str(config["clock"]), float(config["control_rate_hz"]))
    return RobotEnv(robot, task, clock, task_state=bool(config["observation"]["task_state"]))


def make_expert(config: Mapping[str, Any], env: RobotEnv) -> ScriptedExpert:
    """Make the scripted expert of the configured task, looking at `env`'s true state."""
    expert = devices.make(config["task"]["expert"], task=env.task)
    assert isinstance(expert, ScriptedExpert)
    return expert
