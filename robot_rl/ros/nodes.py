"""The table of a robot's ROS 2 nodes, which the supervisor or the launch files start.

It is the config section `nodes`, as in the files of `configs/robot`. Each entry's key is the node
name. The entry has the executable of the ROS package `robot_rl`, the module it runs, and the
parameters. Optional keys are its namespace (relative to the arm's), remappings, and `each_camera`,
which creates one node for each camera of the policy or the reward. A null node is started
elsewhere. A robot with several arms has the nodes of each of `arms`, in a namespace of that name. A
driver that uses topics directly has a `namespace`, also relative to the arm's unless it starts with
a slash. Does not import ROS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np
from omegaconf import DictConfig, ListConfig, OmegaConf

from policies import registry
from robot_rl.config import joined
from robot_rl.errors import RobotRLError
from robot_rl.safety import (
    ArmLimits,
    JointArmLimits,
    ResetOptions,
    check_bounds,
    check_known,
    checked_reset_pose,
    sole_reset_end,
)

PACKAGE = "robot_rl"
_OPEN = "???"  # a missing value
# Driver arguments that identify a device.
_DEVICE_KEYS = ("serial", "device", "address", "host", "settings.port")
_PLUGGED_IN = ("serial", "device")  # listed by doctor
# Parameters of an arm's node besides the bounded fields of `ArmLimits` and `ResetOptions`.
_CORNERS = ("workspace_low", "workspace_high", "reference_orientation")
_PULLED = 0.02  # m and rad by which the node may move a reset's end into the limits
_TURN = 2.0 * np.pi + 0.01
_RESET_ENDS = ("pose", "joints")
_KEYS = ("executable", "module", "parameters", "namespace", "remappings", "each_camera")
# The known nodes: each executable's module and driver family.
_NODES = {
    "arm_node": ("drivers.arm.node", "drivers.arm.base.Arm"),
    "camera_node": ("drivers.camera.node", "drivers.camera.base.Camera"),
    "gripper_node": ("drivers.gripper.node", "drivers.gripper.base.Gripper"),
    "sim_arm_node": ("drivers.arm.sim_node", "drivers.arm.sim.SimArm"),
    "teleop_node": ("drivers.teleop.node", "drivers.teleop.base.TeleopDevice"),
    "twin_node": ("drivers.twin.node", "drivers.twin.ur_controller.UrController"),
}
# Parameters of all nodes of `drivers`, then additional ones for each package's nodes.
_OF_ALL = ("driver", "rate_hz", "stale_after_s", "reconnect_after_s", "autostart", "use_sim_time")
_PARAMETERS = {
    "drivers.arm": ("limits", "reset", "contact_task", "stop_folder", "episode_seed"),
    "drivers.camera": ("camera", "frame_rate_hz", "crop", "size", "first_frame_s"),
    "drivers.gripper": (),
    "drivers.teleop": ("full_translation", "full_rotation", "drives_gripper"),
    "drivers.twin": ("delay_s", "episode_seed"),
}


class Driver(Protocol):
    """Methods common to all drivers."""

    def connect(self) -> None:
        """Connect to the device."""

    def close(self) -> None:
        """Disconnect from the device."""


@dataclass(frozen=True)
class NodeDescription:
    """One node of the table."""

    name: str  # name in its namespace
    executable: str  # name in the ROS package `robot_rl`
    module: str  # the Python module that the executable runs
    namespace: str  # absolute
    # ROS parameters by dotted name: numbers, booleans, strings and lists.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Old name → new name of topics and services.
    remappings: Mapping[str, str] = field(default_factory=dict)

    @property
    def driver(self) -> dict[str, Any]:
        """The parameter `driver`: a class as `_target_`, and its arguments; empty without one."""
        found: dict[str, Any] = json.loads(self.parameters.get("driver", "{}"))
        return found

    @property
    def process(self) -> str:
        """A name that is unique in the table, for the node's process and files."""
        return "-".join(part for part in f"{self.namespace}/{self.name}".split("/") if part)

    def arguments(self, parameter_file: Path) -> list[str]:
        """The command-line arguments after the executable."""
        remappings = {"__node": self.name, "__ns": self.namespace, **self.remappings}
        pairs = [word for old, new in remappings.items() for word in ("-r", f"{old}:={new}")]
        return ["--ros-args", *pairs, "--params-file", str(parameter_file)]

    def parameter_file(self) -> str:
        """The content of a parameter file for this node, in YAML."""
        return json.dumps({"/**": {"ros__parameters": dict(self.parameters)}}, indent=2) + "\n"


def node_table(config: DictConfig) -> tuple[NodeDescription, ...]:
    """Return a configuration's nodes in the order they start.

    Raises a `RobotRLError` that names the node and the key, or the camera and the line to add.
    """
    table: list[NodeDescription] = []
    for name, arm in config.arms.items() or [("", config)]:
        try:
            table += _table_of(arm, _cameras(arm.observation, config.reward))
        except RobotRLError as error:
            above = f"arms.{name}." if name else ""
            raise RobotRLError(
                re.sub(r"(?<![\w./])nodes\.", f"{above}nodes.", str(error))
            ) from error
    _check_devices(table)
    return tuple(table)


def _table_of(config: DictConfig, cameras: list[Any]) -> list[NodeDescription]:
    plain = OmegaConf.to_container(config.nodes, resolve=True)
    assert isinstance(plain, dict)
    table: list[NodeDescription] = []
    if not plain:  # a robot in this process has no namespace either
        return table
    for name, entry in plain.items():
        if entry is None:
            continue
        _check(str(name), entry)
        joints = OmegaConf.select(config.robot, "joint_names", default=None, throw_on_missing=False)
        _check_arm(str(name), entry, len(joints) if isinstance(joints, list | ListConfig) else 0)
        if entry.get("each_camera"):
            _check_each_camera(str(name), entry, cameras)
        options = cameras if entry.get("each_camera") else [None]
        namespace = str(config.robot.namespace)
        table += [_description(namespace, str(name), entry, camera) for camera in options]
    by_others = frozenset(str(name) for name, entry in plain.items() if entry is None)
    _check_served(cameras, by_others, table)
    _check_sizes(cameras, table)
    return table


def _cameras(*seen_by: DictConfig) -> list[Any]:
    """Return the policy's cameras, then those used only by the reward."""
    parts: list[Any] = [OmegaConf.to_container(part, resolve=True) for part in seen_by]
    observed, judged = (part["cameras"] or [] for part in parts)
    names = {camera["name"] for camera in observed}
    return [*observed, *(camera for camera in judged if camera["name"] not in names)]


def _description(
    namespace: str, name: str, entry: Mapping[str, Any], camera: Mapping[str, Any] | None
) -> NodeDescription:
    parameters = dict(entry.get("parameters") or {})
    if camera is not None:
        parameters["camera"] = str(camera["name"])
        name = _camera_node_name(camera)
        size = {key: camera[key] for key in ("width", "height", "depth") if key in camera}
        parameters["driver"] = {**parameters["driver"], "camera": parameters["camera"], **size}
    if "driver" in parameters:  # a mapping, which ROS parameters cannot hold
        driver = parameters["driver"]
        if driver.get("namespace", _OPEN) != _OPEN:  # it uses topics directly
            given = str(driver["namespace"] or "")  # as ROS understands names
            full = given if given.startswith("/") else joined(namespace, given)
            driver = {**driver, "namespace": full}
        parameters["driver"] = json.dumps(driver)
    return NodeDescription(
        name,
        str(entry["executable"]),
        str(entry["module"]),
        joined(namespace, str(entry.get("namespace") or "")),
        _flat(parameters),
        dict(entry.get("remappings") or {}),
    )


def _check(name: str, entry: Mapping[str, Any]) -> None:
    """Check keys and values that the node's process would refuse or ignore."""
    check_known(f"nodes.{name}", entry, _KEYS)
    if missing := [key for key in ("executable", "module") if not entry.get(key)]:
        raise RobotRLError(
            f"the node nodes.{name} cannot be started", got=f"no {missing[0]}", expected=_KEYS
        )
    executable, module = str(entry["executable"]), str(entry["module"])
    if module != _NODES.get(executable, ("",))[0]:
        raise RobotRLError(
            f"nodes.{name} is no node of robot_rl",
            got=f"executable: {executable}, module: {module}",
            expected="; ".join(f"{each}: {runs}" for each, (runs, _) in _NODES.items()),
            hint="name a device of your own as the _target_ of its driver",
        )
    parameters = entry.get("parameters") or {}
    known = (*_OF_ALL, *_PARAMETERS[module.rpartition(".")[0]])
    check_known(f"nodes.{name}.parameters", [k.partition(".")[0] for k in parameters], known)
    if "_target_" in (driver := parameters.get("driver") or {}):
        try:
            registry.check_arguments(driver, driver_family(executable))
        except RobotRLError as error:
            raise RobotRLError(f"nodes.{name}.parameters.driver: {error}") from error


def _check_arm(name: str, entry: Mapping[str, Any], joints: int) -> None:
    """Check settings that an arm's node would refuse or ignore; `joints` is 0 if unknown."""
    if not str(entry["module"]).startswith("drivers.arm."):
        return
    groups = ((entry.get("parameters") or {}).get(group) for group in ("limits", "reset"))
    given = [{k: v for k, v in (g or {}).items() if v not in (None, _OPEN)} for g in groups]
    try:
        limits, reset = given
        check_bounds("limits", (ArmLimits, JointArmLimits), limits, *_CORNERS)
        check_bounds("reset", (ResetOptions,), reset, *_RESET_ENDS)
        bounds = None
        if limits.keys() >= set(_CORNERS[:2]):
            bounds = ArmLimits.of_parameters(limits)
        ends = [reset.pop(end, None) for end in _RESET_ENDS]
        ResetOptions(**reset)
        if any(ends) and sole_reset_end(*ends) is ends[0]:
            pose = checked_reset_pose(ends[0])
            if bounds is not None:  # otherwise the node would move it far into the limits
                bounds.check_inside("reset.pose", pose, _PULLED)
        elif any(ends) and joints:  # nested lists or one flat list
            in_rows = isinstance(ends[1][0], list)
            for row in ends[1] if in_rows else [ends[1]]:
                values = np.array(row, float)
                if values.ndim != 1 or values.size % joints or (in_rows and len(row) != joints):
                    problem, expected = (
                        "reset.joints holds no waypoints",
                        f"{joints} numbers for each",
                    )
                    raise RobotRLError(problem, got=row, expected=expected)
                if (abs(values) > _TURN).any():
                    hint = "give radians, not degrees; robot-rl teach prints where a guided arm is"
                    problem, expected = (
                        "a joint of reset.joints is beyond one turn",
                        "rad, within 2π",
                    )
                    raise RobotRLError(problem, got=row, expected=expected, hint=hint)
    except (RobotRLError, TypeError) as error:
        raise RobotRLError(f"nodes.{name}.parameters: {error}") from error


def _camera_node_name(camera: Mapping[str, Any]) -> str:
    return f"{camera['name']}_camera"


def driver_family(executable: str) -> type[Driver]:
    """Return the driver family of a node's executable; imports its module."""
    family: type[Driver] = resolve_name(_NODES[executable][1])
    return family


def _check_each_camera(name: str, entry: Mapping[str, Any], cameras: Sequence[Any]) -> None:
    """Check that the driver of an `each_camera` node accepts an argument `camera`."""
    driver = (entry.get("parameters") or {}).get("driver") or {}
    if cameras and not registry.takes(driver, driver_family(str(entry["executable"])), "camera"):
        raise RobotRLError(
            f"the node nodes.{name} cannot be one for each camera",
            got=f"each_camera with {driver['_target_']}, which takes no `camera`",
            expected="a driver with an argument `camera`, such as the simulated one",
            hint=f"take nodes.{name} out, and {_line(cameras[0])}; and so on for each",
        )


def _check_served(
    cameras: Sequence[Any], by_others: frozenset[str], table: Sequence[NodeDescription]
) -> None:
    """Check that each camera has a node; without one its topic would stay silent."""
    served = {str(node.parameters["camera"]) for node in table if "camera" in node.parameters}
    alone = [
        camera
        for camera in cameras
        if str(camera["name"]) not in served and _camera_node_name(camera) not in by_others
    ]
    if alone:
        name = alone[0]["name"]
        raise RobotRLError(
            f"no node serves the camera {', '.join(str(c['name']) for c in alone)}",
            got=f"nodes for {', '.join(sorted(served)) or 'no camera'}",
            expected="one for each of observation.cameras and reward.cameras",
            hint=f"{_line(alone[0])}; where somebody else publishes {name}/color/image_raw,"
            f" +nodes.{_camera_node_name(alone[0])}=null",
        )


def _check_sizes(cameras: Sequence[Any], table: Sequence[NodeDescription]) -> None:
    """Check that each camera node publishes images of the observed size."""
    observed = {c["name"]: [int(c.get(key, 128)) for key in ("width", "height")] for c in cameras}
    for node in table:
        given = node.parameters
        shown = [int(n) for n in given.get("size") or given.get("crop", [])[2:]]
        wanted = observed.get(given.get("camera"))
        if wanted and len(shown) == 2 and shown != wanted:
            raise RobotRLError(
                f"nodes.{node.name}.parameters publishes pictures of another size",
                got=f"size: {shown}",
                expected=f"size: {wanted}, as observation.cameras says of {given['camera']}",
            )
        crop = [int(n) for n in given.get("crop") or ()]
        sides = [node.driver.get(key) for key in ("width", "height")]
        taken = [n for n in sides if isinstance(n, int)]  # only the given ones
        ends = [crop[0] + crop[2], crop[1] + crop[3]] if len(crop) == 4 else []
        if len(taken) == 2 and ends and (ends[0] > taken[0] or ends[1] > taken[1]):
            raise RobotRLError(
                f"nodes.{node.name}.parameters.crop is not within the camera's pictures",
                got=f"crop: {crop}",
                expected=f"a part of {taken[0]}×{taken[1]}, as its driver takes them",
            )


def _check_devices(table: Sequence[NodeDescription]) -> None:
    """Check that no two nodes would open the same device, which fails for the second."""
    found: dict[tuple[str, str, str], str] = {}
    for node in table:
        given = _flat(node.driver)
        if not isinstance(serial := given.get("serial", _OPEN), str):
            raise RobotRLError(
                f"the serial of the node {node.process} is a number",
                got=serial,
                expected="a text: without quotes 040412060001 is read as another number",
                hint="quote the serial, as it stands on the device",
            )
        for key in _DEVICE_KEYS:
            if (value := given.get(key, _OPEN)) == _OPEN:
                continue
            # Not per driver: any two would command one arm. A hand may share its arm's host.
            device = (node.module, key, str(value))
            other = found.setdefault(device, node.process)
            if other != node.process:
                raise RobotRLError(
                    f"the nodes {other} and {node.process} would open one device",
                    got=f"{key}: {value} twice",
                    hint="give each its own"
                    + ("; robot-rl doctor lists those that are plugged in" * (key in _PLUGGED_IN)),
                )


def _line(camera: Mapping[str, Any]) -> str:
    """Return the setting that adds a node for a camera, with a placeholder for the device."""
    size = ",".join(f"{key}:{camera.get(key, 128)}" for key in ("width", "height"))
    return (
        f'write "+nodes.{_camera_node_name(camera)}={{executable:camera_node,'
        f"module:drivers.camera.node,parameters:{{camera:{camera['name']},"
        "driver:{_target_:drivers.camera.realsense.RealSenseCamera,serial:'SERIAL',"
        f'{size}}}}}}}" (or another driver of hardware/cameras.md)'
    )


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            # ROS lists have a single element type and cannot be nested.
            if isinstance(value, list) and all(isinstance(item, list) for item in value):
                value = [number for row in value for number in row]
            mixed = isinstance(value, list) and {type(item) for item in value} == {int, float}
            flat[f"{prefix}{key}"] = [float(item) for item in value] if mixed else value
    return flat
