"""The devices of a cell that `robot-rl doctor` checks one by one, without moving any.

A camera captures an image, a teleoperation device is read. An arm or gripper driver may have a
method `examine` that describes what answers at its address, or raises `RobotRLError`; it neither
takes control nor moves anything. For other drivers only settings and library are checked.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import Any, TextIO

from policies import registry
from robot_rl.errors import RobotRLError
from robot_rl.ros.environment import prepare_environment
from robot_rl.safety.limits import check_positive

_WATCHED_SECONDS, _WATCHED_PERIOD, _PICTURE_SECONDS = 6.0, 0.05, 5.0
_SHOWN = ("crop", "size", "frame_rate_hz")  # parameters of a camera's node
_ON_TOPICS = "robot_rl.ros.robot.RosRobot"
_AXES = ("front", "left", "up", "turn x", "turn y", "turn z")


def devices_of(*words: str) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the devices of a configuration, and its keys that still need values.

    A device is named after its node, or `teleop`. Its value is its kind, its driver as JSON and,
    for a camera, what its node publishes. Devices of a simulated world, including a twin's,
    exist only while a command runs. `RobotRLError` for values that no device accepts.
    """
    from omegaconf import OmegaConf  # late import: Hydra takes a moment

    from robot_rl.config import composed, is_task_named, missing_keys, named_cell
    from robot_rl.ros.nodes import node_table
    from robot_rl.safety.limits import PoseLimits

    cell = named_cell(words)
    config = composed(words, cell)
    parts = {f"arms.{arm}.": own for arm, own in config.arms.items()} or {"": config}
    for above, part in parts.items():
        if (limits := part.robot.get("limits")) and not OmegaConf.missing_keys(limits):
            try:
                registry.make(limits, PoseLimits)
            except RobotRLError as error:
                raise RobotRLError(f"{above}robot.limits: {error}") from error
        if is_task_named(words, cell) and part.robot.get("_target_") == _ON_TOPICS:
            _check_task(part, list(config.arms))
    found: dict[str, tuple[str, ...]] = {}
    simulated = "simulated" if config.robot.get("mirror") is not None else ""
    for node in node_table(config):
        given = node.parameters
        if "camera" in given and not simulated:
            shown = {key: given[key] for key in _SHOWN if key in given}
            found[node.process] = ("camera", given["driver"], json.dumps(shown))
        elif "driver" in given:
            kind = "by joints" if given.get("reset.joints") else ""
            found[node.process] = (simulated or kind, given["driver"])
    if config.teleop.device is not None:
        found["teleop"] = ("teleop", json.dumps(OmegaConf.to_container(config.teleop.device)))
    return found, missing_keys(config)


def _check_task(config: Any, arms: list[str]) -> None:
    """Check the given task settings as a robot would; `arms` are the names of all arms."""
    from omegaconf import OmegaConf

    from robot_rl.env.factory import check_observed, task_form
    from robot_rl.env.multi_arm import of_arm
    from robot_rl.env.robot import state_fields
    from robot_rl.env.task import Task, TaskView
    from robot_rl.safety.limits import PoseLimits

    tracked, robot = config.task[task_form(config)], config.robot
    open_keys = OmegaConf.missing_keys(tracked)
    if open_keys and "task" not in tracked:
        return
    task: Any = registry.make(tracked.task, TaskView) if open_keys else registry.make(tracked, Task)
    if not (open_keys or robot.joints or OmegaConf.missing_keys(robot.limits)):
        task.check_start(registry.make(robot.limits, PoseLimits))
    if OmegaConf.is_missing(robot, "joint_names"):
        return
    measured = {"pose": robot.pose, "velocity": robot.twist, "wrench": robot.wrench}
    by_joints = robot.joints is not None
    own = state_fields(
        len(robot.joint_names), **measured, gripper=robot.gripper, by_joints=by_joints
    )
    fields = (*own, *(task.observation_fields if config.observation.task_state else ()))
    names = [field.name for field in fields]
    check_observed(
        config.observation.states or (),
        [*names, *(of_arm(arm, name) for arm in arms for name in names)],
    )


def look(kind: str, driver: str, shown: str = "{}") -> str:
    """Describe one device of `devices_of` and its state, or raise `RobotRLError`."""
    from drivers.camera.base import Crop
    from robot_rl.config import NOT_GIVEN
    from robot_rl.ros.nodes import Driver

    given = json.loads(driver).items()
    if open_keys := [key for key, value in given if value in ("???", NOT_GIVEN)]:
        raise RobotRLError(
            f"its {', '.join(open_keys)} is not given", hint="write it into the cell"
        )
    published = json.loads(shown)
    check_positive("frame_rate_hz", published.pop("frame_rate_hz", 1.0))
    view = registry.make({"_target_": "drivers.camera.base.Crop", **published}, Crop)
    made: Any = registry.make(json.loads(driver), Driver)
    name = type(made).__name__
    if kind == "simulated":
        return f"{name}, its settings and its library; it is simulated, and starts with a command"
    if kind == "by joints" and not hasattr(made, "command_joints"):
        from drivers.arm.base import check_kinematics

        check_kinematics(made)
    if kind not in ("camera", "teleop"):
        prepare_environment(None)  # for drivers on topics
        if hasattr(made, "examine"):
            return f"{name}, {made.examine()}"
        return f"{name}: only its settings and its library were tried; its node will connect to it"
    with closing(made):
        made.connect()
        if kind == "teleop":
            return f"{name}, {watch(made, _WATCHED_SECONDS, sys.stderr)}"
        picture = made.read(_PICTURE_SECONDS)
        (height, width), (high, wide) = (p.color.shape[:2] for p in (picture, view.of(picture)))
        part = f", published as {wide}×{high}" if (wide, high) != (width, height) else ""
        return f"{name}, a picture of {width}×{height}{part}"


def watch(device: Any, seconds: float, live: TextIO) -> str:
    """Read a connected device once, or for some seconds if `live` is a terminal to show it on.

    Returns a description of the readings; `RobotRLError` if the device fails.
    """
    from robot_rl.safety import rotations

    largest, buttons = 0.0, set[str]()
    until = time.monotonic() + (seconds if live.isatty() else 0.0)
    if live.isatty():
        live.write("move the device and press its buttons ...\n")
    while True:
        state = device.read(rotations.DOWNWARD)
        largest = max(largest, *(abs(float(axis)) for axis in state.motion))
        buttons |= state.buttons
        if time.monotonic() >= until:
            break
        # A leader arm reports its joints [rad]; the motion depends on the robot.
        leader = getattr(device, "joint_names", None)
        axes = (_AXES, state.motion) if leader is None else (leader, device.positions()[0])
        shown = "  ".join(f"{n} {v:+.2f}" for n, v in zip(*axes, strict=True))
        print(f"\r{shown}  {' '.join(sorted(buttons))}\x1b[K", end="", file=live, flush=True)
        time.sleep(_WATCHED_PERIOD)
    if live.isatty():
        live.write("\n")
    pressed = f", buttons {', '.join(sorted(buttons))}" if buttons else ""
    return f"connected; largest motion {largest:.2f} of 1{pressed}"
