"""Describe jobs to `ros2 launch`: the node table, and the command that uses the nodes.

Loads ROS's `launch` and `launch_ros`, which come with a ROS installation and are not on PyPI.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
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
from omegaconf import DictConfig

from launch import LaunchContext, LaunchDescription
from robot_rl.commands.table import COMMANDS
from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.plugins import Command
from robot_rl.processes.signals import EXIT_INTERRUPTED
from robot_rl.ros.environment import ros_environment
from robot_rl.ros.nodes import PACKAGE, NodeDescription, node_table

CommandConfig = Callable[[Command, list[str]], DictConfig]

_RESPAWN_SECONDS = 1.0
_STOP_SECONDS = "60"
# How to follow a robot-rl hint in `ros2 launch`.
_HINT = (
    "to ros2 launch give KEY=VALUE as KEY:=VALUE where --show-args lists KEY, and otherwise as"
    " overrides:='KEY=VALUE'"
)


# Argument → default and description. An empty value leaves the setting to the configuration.
ARGUMENTS: dict[str, tuple[str, str]] = {
    "task": ("", "task, as in robot-rl train task=..."),
    "cell": ("", "your robot: a YAML file, or a folder with cell.yaml, in place of robot"),
    "robot": ("ros", "robot: ros, ros_sim, or one of your own in configs/robot"),
    "teleop": ("", "device that a person drives the robot with, as in robot-rl collect teleop=..."),
    "algorithm": ("", "algorithm of online learning"),
    "namespace": ("", "namespace of the arm's topics"),
    "run": ("latest", "run directory"),
    "overrides": ("", "further overrides of the configuration, quoted as in a shell"),
}
_ROBOT = ("cell", "task", "robot", "namespace", "overrides")
# Launch file → argument names. A file named like a command also runs that command.
JOBS: dict[str, tuple[str, ...]] = {
    "train": ("algorithm", "teleop", *_ROBOT),
    "collect": ("teleop", *_ROBOT),
    "evaluate": ("run", "teleop", *_ROBOT),
    "run": ("run", "teleop", *_ROBOT),
    "robot": _ROBOT,
    "sim_robot": _ROBOT,
}


def launch_description(name: str, command_config: CommandConfig) -> LaunchDescription:
    """Return the description of a job of `JOBS`; `command_config` composes its configuration.

    A node that is killed is restarted. The command is not: its end shuts everything down, after it
    has put the robot on hold. A node's own error, such as an impossible parameter, also shuts
    everything down, since it would recur. `ros2 launch` returns 1 after an error of either.
    """
    defaults = {n: ARGUMENTS[n][0] for n in JOBS[name]}
    if name == "sim_robot":
        defaults["robot"] = "ros_sim"
    declared = [
        DeclareLaunchArgument(n, default_value=default, description=ARGUMENTS[n][1])
        for n, default in defaults.items()
    ]
    actions = OpaqueFunction(function=_actions, args=[name, command_config])
    return LaunchDescription([*declared, actions])


def overrides_of(values: Mapping[str, str]) -> list[str]:
    """Return the configuration overrides for a job's arguments."""
    keys = {"namespace": "robot.namespace"}
    given = [
        f"{keys.get(name, name)}={value}"
        for name, value in values.items()
        if value and name != "overrides" and not (name == "robot" and values.get("cell"))
    ]
    try:
        return [*given, *shlex.split(values.get("overrides", ""))]
    except ValueError as error:
        raise RobotRLError(
            "the argument overrides cannot be read",
            got=f"{values['overrides']} ({error})",
            expected="KEY=VALUE KEY=VALUE ..., quoted as in a shell",
        ) from error


def _actions(context: LaunchContext, job: str, command_config: CommandConfig) -> list[Any]:
    overrides = overrides_of({n: LaunchConfiguration(n).perform(context) for n in JOBS[job]})
    command = COMMANDS.get(job)
    try:
        # Its nodes are those of the run that it evaluates or continues.
        config = command_config(command, overrides) if command else compose(overrides)
        table = node_table(config)
    except RobotRLError as error:
        raise RobotRLError(f"{error} ({_HINT})") from error
    if command is None and not table:
        raise RobotRLError(
            "there is nothing to launch",
            got=f"robot={config.choices.robot}, whose section `nodes` is empty",
            hint="name a robot that has nodes, such as robot:=ur or robot:=ros_sim, or list yours"
            " in `nodes`, see docs/topics.md",
        )
    environment = ros_environment(config.robot.discovery_range)
    return [
        *(SetEnvironmentVariable(n, value) for n, value in environment.items()),
        *map(_node, table),
        *([_command(job, overrides)] if command else []),
    ]


def command_ended(command: str) -> Callable[[Any, LaunchContext], Shutdown]:
    """Shut everything down when the command ends, with an error if it failed."""

    def end(event: Any, context: LaunchContext) -> Shutdown:
        if event.returncode not in (0, EXIT_INTERRUPTED):
            raise RobotRLError(
                f"robot-rl {command} has failed", got=f"exit code {event.returncode}", hint=_HINT
            )
        return Shutdown(reason=f"robot-rl {command} has ended")

    return end


def node_ended(event: Any, context: LaunchContext) -> None:
    """Fail if a node ends with an error: a restart would fail again."""
    if event.returncode > 0 and not context.is_shutdown:
        raise RobotRLError(
            f"the node {event.process_name} has failed",
            got=f"exit code {event.returncode}",
            hint=f"see what it says above; {_HINT}",
        )


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
        on_exit=node_ended,
        output="both",
    )


def _command(command: str, overrides: list[str]) -> ExecuteProcess:
    program = PathJoinSubstitution([FindPackagePrefix(PACKAGE), "lib", PACKAGE, "robot-rl"])
    return ExecuteProcess(
        cmd=[program, command, *overrides, "start_nodes=false"],
        cwd=str(Path.cwd()),
        name=command,
        output="both",
        sigterm_timeout=_STOP_SECONDS,  # time for it to save its data
        on_exit=command_ended(command),
    )
