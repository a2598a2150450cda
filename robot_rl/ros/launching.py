"""Describes to `ros2 launch` what it starts: the table of nodes, and the stage that uses them.

Loads ROS's `launch` and `launch_ros`, which come with a ROS installation and are not on PyPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
)
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackagePrefix

from launch import LaunchContext, LaunchDescription
from robot_rl.cli import stage_config
from robot_rl.config import compose
from robot_rl.ros.environment import ros_environment
from robot_rl.ros.nodes import PACKAGE, NodeDescription, node_table
from robot_rl.stages.table import STAGES

_RESPAWN_SECONDS = 1.0
_STOP_SECONDS = "60"


@dataclass(frozen=True)
class Job:
    """What a launch file is for.

    Attributes:
        stage: The stage of `robot-rl` that runs beside the nodes; None for the nodes alone.
        robot: Default of the argument `robot`.
        arguments: Names of its arguments.
    """

    stage: str | None
    robot: str
    arguments: tuple[str, ...]


# Argument → default and description. An empty value is left to the configuration.
ARGUMENTS: dict[str, tuple[str, str]] = {
    "task": ("", "task, as in robot-rl train task=..."),
    "robot": ("", "robot: ros, ros_sim, or one of your own in configs/robot"),
    "algorithm": ("", "algorithm of online learning"),
    "namespace": ("", "namespace of the arm's topics"),
    "run": ("latest", "run directory"),
    "overrides": ("", "further overrides of the configuration, separated by spaces"),
}
_ROBOT = ("task", "robot", "namespace", "overrides")
JOBS = {
    "train": Job("train", "ros", ("task", "robot", "algorithm", "namespace", "overrides")),
    "collect": Job("collect", "ros", _ROBOT),
    "evaluate": Job("evaluate", "ros", ("run", *_ROBOT)),
    "robot": Job(None, "ros", _ROBOT),
    "sim_robot": Job(None, "ros_sim", _ROBOT),
}


def launch_description(name: str) -> LaunchDescription:
    """The description of a job of `JOBS`.

    Nodes that end are started again. The stage is not, and its end is the end of all: it has then
    let the robot hold. Where a node fails for good, the robot holds, and the stage waits for it
    and says so.
    """
    job = JOBS[name]
    declared = []
    for argument in job.arguments:
        default, description = ARGUMENTS[argument]
        default = job.robot if argument == "robot" else default
        declared.append(
            DeclareLaunchArgument(argument, default_value=default, description=description)
        )
    return LaunchDescription([*declared, OpaqueFunction(function=_actions, args=[job])])


def overrides_of(job: Job, values: Mapping[str, str]) -> list[str]:
    """Overrides of the configuration that a job's arguments mean."""
    keys = {"namespace": "robot.namespace"}
    given = [
        f"{keys.get(name, name)}={value}"
        for name, value in values.items()
        if value and name != "overrides"
    ]
    return [*given, *values.get("overrides", "").split()]


def _actions(context: LaunchContext, job: Job) -> list[Any]:
    values = {name: LaunchConfiguration(name).perform(context) for name in job.arguments}
    overrides = overrides_of(job, values)
    # The nodes are those of what the stage does: of the run that it evaluates or goes on with.
    config = stage_config(STAGES[job.stage], overrides) if job.stage else compose(overrides)
    environment = ros_environment(config.robot.discovery_range)
    actions: list[Any] = [SetEnvironmentVariable(n, value) for n, value in environment.items()]
    actions += [_node(description) for description in node_table(config)]
    if job.stage is not None:
        actions.append(_stage(job.stage, overrides))
    return actions


def _node(description: NodeDescription) -> Node:
    return Node(
        package=PACKAGE,
        executable=description.executable,
        name=description.name,
        namespace=description.namespace,
        parameters=[dict(description.parameters)],
        remappings=list(description.remappings.items()),
        respawn=True,
        respawn_delay=_RESPAWN_SECONDS,
        output="both",
    )


def _stage(stage: str, overrides: list[str]) -> ExecuteProcess:
    program = PathJoinSubstitution([FindPackagePrefix(PACKAGE), "lib", PACKAGE, "robot-rl"])
    return ExecuteProcess(
        cmd=[program, stage, *overrides, "start_nodes=false"],
        cwd=str(Path.cwd()),
        name=stage,
        output="both",
        sigterm_timeout=_STOP_SECONDS,  # it saves its data
        on_exit=Shutdown(reason=f"robot-rl {stage} has ended"),
    )
