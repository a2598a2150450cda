"""`robot-rl teach`: from an arm that a person guides by hand to the lines of a cell or a task.

It listens to the topics of the arm's node: nothing is sent, and nothing moves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.ros.sensors import Sensor
    from robot_rl.safety.limits import Vector

# An arm whose joints are all slower stands still [rad/s].
_STILL = 0.02
_STILL_SECONDS, _FIRST_SECONDS, _STALE_SECONDS = 2.0, 10.0, 0.5


def run(**options: str | None) -> None:
    """Print the lines of a `part` through where Enter was pressed, to be kept in a file.

    Where the input ends without any, they are of where the arm is. Raises `RobotRLError` where it
    never stood still, or its node is silent.
    """
    from sensor_msgs.msg import JointState

    from robot_rl.ros import messages
    from robot_rl.ros.client import RosClient, message_type
    from robot_rl.ros.environment import prepare_environment
    from robot_rl.ros.sensors import Sensor, wait_for_all

    def of_all(message: JointState) -> tuple[Vector, Vector]:
        return messages.joint_states(message, message.name)

    prepare_environment(None)
    with closing(RosClient("teach", options.get("namespace") or "/")) as client:
        joints = Sensor(client, JointState, "joint_states", _STALE_SECONDS, of_all, sole=True)
        kind = message_type("geometry_msgs/msg/PoseStamped")
        pose = Sensor(client, kind, "current_pose", _STALE_SECONDS, messages.pose_array, sole=True)
        wait_for_all([joints, pose], 1, _FIRST_SECONDS)
        _say("guide the arm by hand; Enter keeps where it is, Ctrl-D ends")
        taught: list[tuple[Vector, Vector]] = []
        for _ in sys.stdin:
            _keep(joints, pose, taught)
        if not taught:
            _keep(joints, pose, taught)
    if not taught:
        raise RobotRLError("the arm moved, and nothing was taught", hint="hold it still, and again")
    print(LINES[options.get("part") or "reset"](taught), end="", flush=True)


def reset_lines(taught: Sequence[tuple[Vector, Vector]]) -> str:
    """The YAML of a reset by joint positions (n,) [rad], with the TCP's poses (7,) there."""
    text = "nodes:\n  arm:\n    parameters:\n      reset:\n"
    text += f"        pose: null   # or, without joints: {_shown(taught[-1][1])}\n"
    text += "        joints:      # rad; a reset ends at the last\n"
    rows = (f"          - {_shown(joints)}   # TCP at {_shown(p[:3])} m\n" for joints, p in taught)
    return text + "".join(rows)


def start_lines(taught: Sequence[tuple[Vector, Vector]]) -> str:
    """The YAML of a task's start: the box about all positions, with the last orientation."""
    positions = np.array([pose[:3] for _, pose in taught])
    low, high = positions.min(0), positions.max(0)
    start = np.concatenate([0.5 * (low + high), taught[-1][1][3:]])
    text = f"task:\n  tracked:\n    start_pose: {_shown(start)}   # m, xyzw\n"
    region = f"    start_noise: {_shown(0.5 * (high - low))}   # m\n"
    return text + (region if len(taught) > 1 else "")


def goal_lines(taught: Sequence[tuple[Vector, Vector]]) -> str:
    """The YAML of a task's goal, for reward=pose: the last pose."""
    return f"task:\n  goal_pose: {_shown(taught[-1][1])}   # m, xyzw\n"


LINES = {"reset": reset_lines, "start": start_lines, "goal": goal_lines}


def _keep(joints: Sensor, pose: Sensor, taught: list[tuple[Vector, Vector]]) -> None:
    def still() -> bool:
        return bool(abs(joints.value(joints.newest())[1]).max() <= _STILL)

    if not wait_until(still, _STILL_SECONDS):
        _say("the arm moves, so nothing was kept: hold it still, and press Enter again")
        return
    taught.append((joints.value(joints.newest())[0], pose.value(pose.newest())))
    _say(f"{len(taught)}: joints {_shown(taught[-1][0])} rad, TCP {_shown(taught[-1][1])}")


def _shown(values: Vector) -> str:
    return str([round(float(value), 4) for value in values])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
