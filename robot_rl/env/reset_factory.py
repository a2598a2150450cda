"""From a configuration to how training comes back to a start: `reset` of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from omegaconf import DictConfig

from policies import registry
from policies.compute import compute_device
from policies.runner import PolicyRunner
from robot_rl.config import ConfigError
from robot_rl.env.controllers import ExpertController
from robot_rl.env.intervention import Intervention
from robot_rl.env.robot_env import RobotEnvWrapper
from robot_rl.env.rollout import Controller
from robot_rl.env.sim.task import SimTask
from robot_rl.run import RunDirectory, load_policy


def make_reset(
    config: DictConfig, operated: Intervention, stopped: Callable[[], bool]
) -> RobotEnvWrapper:
    """Wrap the environment in the configured reset.

    Args:
        config: The configuration.
        operated: The environment with its operator.
        stopped: Whether the process is to end.

    Raises:
        ConfigError: The backward task does not undo the task, or not on this robot.
        PolicyError: The backward policy was made for another task, rate or observation.
    """
    reset = config.reset
    if reset.wrapper is None:
        return operated
    further: dict[str, Any] = {}
    if "backward" in reset:
        task = _backward_task(reset.backward, operated)
        controller = _backward_controller(config, task, operated)
        further = {"task": task, "controller": controller, "stopped": stopped}
    wrapper: RobotEnvWrapper = registry.make(reset.wrapper, env=operated, **further)
    return wrapper


def _backward_task(backward: Mapping[str, Any], operated: Intervention) -> SimTask:
    """The backward task in the world of the forward one."""
    forward = operated.task
    if not isinstance(forward, SimTask):
        raise ConfigError(
            "a backward policy needs the scene of the simulation",
            got=f"a task of {type(forward).__module__}",
            hint="add robot=sim, or take reset=human",
        )
    task: SimTask = registry.make(backward["environment"])
    task.attach(forward.world)
    if task.action_names != forward.action_names:
        raise ConfigError(
            f"the task {task.name!r} does not undo {forward.name!r}",
            got=f"actions {', '.join(task.action_names)}",
            expected=", ".join(forward.action_names),
            hint="take reset=scripted, or another task with task@reset.backward=TASK",
        )
    return task


def _backward_controller(config: DictConfig, task: SimTask, operated: Intervention) -> Controller:
    schema = operated.schema
    if config.reset.run is None:
        expert = registry.make(config.reset.backward.expert, task=task)
        return ExpertController(expert, schema.action_dimension)
    run = RunDirectory.open(config.reset.run, config.runs_directory)
    behaviour, _ = load_policy(run)
    fields = [f for f in schema.fields if f.name in schema.observation_names]
    behaviour.expect(
        task=task.name,
        control_rate_hz=schema.control_rate_hz,
        action_names=schema.action_names,
        observation={f.name: int(np.prod(f.shape)) for f in (*fields, *task.observation_fields)},
    )
    return PolicyRunner(behaviour.exploring("mean").to(compute_device(config)))
