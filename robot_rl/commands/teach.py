"""`robot-rl teach`: turn positions of a hand-guided arm into lines for a cell or task.

It only subscribes to the topics of the arm's node: it sends no commands and causes no motion.
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

    # Joint positions (n,) [rad], and the TCP pose (7,) if known.
    Taught = tuple[Vector, Vector | None]

# An arm stands still if all joints are slower than this [rad/s].
_STILL = 0.02
_ONE_POINT = 0.001  # m: positions within this distance count as one
_RESET = "nodes.arm.parameters.reset"
_STILL_SECONDS, _FIRST_SECONDS, _POSE_SECONDS, _STALE_SECONDS = 2.0, 10.0, 2.0, 0.5


def run(**options: str | None) -> None:
    """Print the lines of `part` for the positions where Enter was pressed, to paste into a file.

    If the input ends without any, the arm's current position is used. Raises `RobotRLError` if the
    arm never stood still, or its node sends no data.
    """
    from sensor_msgs.msg import JointState

    from robot_rl.ros import conversions
    from robot_rl.ros.environment import prepare_environment
    from robot_rl.ros.ros_client import RosClient, message_type
    from robot_rl.ros.sensors import Sensor, wait_for_all

    def of_all(message: JointState) -> tuple[Vector, Vector]:
        return conversions.joint_states(message, message.name)

    prepare_environment(None)
    with closing(RosClient("teach", options.get("namespace") or "/")) as client:
        joints = Sensor(client, JointState, "joint_states", _STALE_SECONDS, of_all)
        kind = message_type("geometry_msgs/msg/PoseStamped")
        pose = Sensor(client, kind, "current_pose", _STALE_SECONDS, conversions.pose_array)
        wait_for_all([joints], 1, _FIRST_SECONDS)
        known = wait_until(lambda: pose.count > 0, _POSE_SECONDS)  # not every arm publishes it
        part = options.get("part") or "reset"
        if part != "reset" and not known:
            hint = "of an arm that takes joint targets only part=reset can be taught"
            raise RobotRLError(
                "the pose of the tool is not known", got="no current_pose", hint=hint
            )
        _say("guide the arm by hand; Enter keeps where it is, Ctrl-D ends")
        taught: list[Taught] = []
        for _ in sys.stdin:
            _keep(joints, pose if known else None, taught)
        if not taught:
            _keep(joints, pose if known else None, taught)
    if not taught:
        raise RobotRLError("the arm moved, and nothing was taught", hint="hold it still, and again")
    where = "the end of the cell" if part == "reset" else "the task's file, in place of its own"
    _say(f"for {where}:")
    print(LINES[part](taught), end="", flush=True)


def reset_lines(taught: Sequence[Taught]) -> str:
    """Return cell lines for a reset through joint positions (n,) [rad], with TCP poses (7,).

    An arm that takes joint targets may have no pose.
    """
    text, last = "", taught[-1][1]
    if last is not None:
        text += f"{_RESET}.pose: null   # or, without joints: {shown(last)}\n"
    text += f"{_RESET}.joints:   # rad; a reset ends at the last; a UR arm needs driver.type too\n"
    for joints, pose in taught:
        where = "" if pose is None else f"   # TCP at {shown(pose[:3])} m"
        text += f"  - {shown(joints)}{where}\n"
    return text


def start_lines(taught: Sequence[Taught]) -> str:
    """Return task lines: the box around all positions, with the last orientation."""
    poses = np.array([pose for _, pose in taught])
    low, high = poses[:, :3].min(0), poses[:, :3].max(0)
    start = np.concatenate([0.5 * (low + high), poses[-1, 3:]])
    text = f"    start_pose: {shown(start)}   # m, xyzw\n"
    if len(taught) > 1 and np.ptp(poses[:, :3], axis=0).max() < _ONE_POINT:
        _say("the corners are one point: the region is empty")
    region = f"    start_noise: {shown(0.5 * (high - low))}   # m\n"
    return text + (region if len(taught) > 1 else "")


def goal_lines(taught: Sequence[Taught]) -> str:
    """Return the task line for reward=pose: the last pose."""
    return f"  goal_pose: {shown(np.array(taught[-1][1]))}   # m, xyzw\n"


LINES = {"reset": reset_lines, "start": start_lines, "goal": goal_lines}


def _keep(joints: Sensor, pose: Sensor | None, taught: list[Taught]) -> None:
    def still() -> bool:
        return bool(abs(joints.value(joints.newest())[1]).max() <= _STILL)

    if not wait_until(still, _STILL_SECONDS):
        _say("the arm moves, so nothing was kept: hold it still, and press Enter again")
        return
    at = None if pose is None else pose.value(pose.newest())
    taught.append((joints.value(joints.newest())[0], at))
    tool = "" if at is None else f", TCP {shown(at)}"
    _say(f"{len(taught)}: joints {shown(taught[-1][0])} rad{tool}")


def shown(values: Vector) -> str:
    """Format numbers for a cell, a task or a message: to 0.1 mm or 0.1 mrad."""
    return str([round(float(value), 4) for value in values])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
