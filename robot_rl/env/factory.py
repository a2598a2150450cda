"""From a configuration to an environment: the one place that joins task, robot and clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl import devices
from robot_rl.data.schema import RowSchema
from robot_rl.env.rate import make_clock
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.task import Expert
from robot_rl.errors import RobotRLError


def make_env(config: Mapping[str, Any]) -> RobotEnv:
    """Make the environment that `task`, `robot`, `observation` and the clock describe.

    Raises:
        RobotRLError: The task has not the form that the robot needs.
    """
    # A simulated task is in a world; one on topics is told where its objects are.
    form = config["robot"].get("task", "environment")
    if form not in config["task"]:
        raise RobotRLError(
            f"the task {config['task']['name']!r} cannot be done on this robot",
            got=f"task.{form} is missing",
            hint="add it to the task's configuration, as in configs/task/reach.yaml",
        )
    task = devices.make(config["task"][form])
    robot = devices.make(config["robot"], task=task)
    task = getattr(robot, "task", task)  # several arms do it each, and are done together
    clock = make_clock(str(config["clock"]), float(config["control_rate_hz"]))
    return RobotEnv(robot, task, clock, task_state=bool(config["observation"]["task_state"]))


def make_expert(config: Mapping[str, Any], env: RobotEnv) -> Expert:
    """Make the scripted expert of the configured task, looking at `env`'s true state.

    Over topics that is a copy of the simulated world, which the robot keeps.

    Raises:
        RobotRLError: The task has none.
    """
    if config["task"]["expert"] is None:
        raise RobotRLError(
            f"the task {env.task.name!r} has no scripted expert",
            got="task.expert=null",
            hint="name demonstrations with dataset=PATH, or an expert with task.expert",
        )
    task = getattr(env.robot, "simulated_task", None) or env.task
    expert: Expert = devices.make(config["task"]["expert"], task=task)
    return expert


def observed_widths(config: Mapping[str, Any], schema: RowSchema) -> dict[str, int]:
    """Keys and widths of what the policy sees: `observation.states`, or all of `state/`."""
    every = (name for name in schema.observation_names if name.startswith("state/"))
    names = config["observation"]["states"] or every
    return {str(name): int(np.prod(schema.dtype[str(name)].shape)) for name in names}
