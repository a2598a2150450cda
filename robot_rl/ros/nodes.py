"""The table of a robot's ROS 2 nodes: what the supervisor starts, and what the launch files start.

It is the section `nodes` of the configuration, as `configs/robot/ros_sim.yaml` has it: under each
name the executable of the ROS package `robot_rl` and the module that it runs, the parameters, and
where they are needed its namespace (relative to the arm's), remappings, and `each_camera`, with
which there is one node for each camera that the policy sees with. A node that is null is run by
somebody else. A robot of several arms has all of them once for each of `robot.arms`, in namespaces
of these names. A driver that uses topics by itself has a `namespace`: it too is relative to the
arm's, unless it begins with a slash. Loads no ROS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl.errors import RobotRLError
from robot_rl.ros.camera_nodes import camera_node_name, check_camera_nodes, check_each_camera
from robot_rl.ros.node_description import NodeDescription

PACKAGE = "robot_rl"
_KEYS = {"executable", "module", "parameters", "namespace", "remappings", "each_camera"}


class NodeTableError(RobotRLError):
    """A node in the configuration that cannot be started."""


def node_table(config: DictConfig) -> tuple[NodeDescription, ...]:
    """The nodes of a configuration, in the order in which they are started.

    Raises:
        NodeTableError: Names the node and the key.
        CameraNodeError: A camera is observed that no node serves, or a node cannot serve its own.
    """
    plain = OmegaConf.to_container(config.nodes, resolve=True)
    assert isinstance(plain, dict)
    if not plain:  # a robot in this process has no namespace either
        return ()
    cameras = OmegaConf.to_container(config.observation.cameras, resolve=True)
    assert isinstance(cameras, list)
    table = []
    for arm in config.robot.get("arms") or [""]:
        namespace = joined(str(config.robot.namespace), str(arm))
        for name, entry in plain.items():
            if entry is None:
                continue
            _check(str(name), entry)
            if entry.get("each_camera"):
                check_each_camera(str(name), entry, cameras)
            options = cameras if entry.get("each_camera") else [None]
            table += [_description(namespace, str(name), entry, camera) for camera in options]
    by_others = frozenset(str(name) for name, entry in plain.items() if entry is None)
    check_camera_nodes(cameras, by_others, table, _resolved)
    return tuple(table)


def _description(
    namespace: str, name: str, entry: Mapping[str, Any], camera: Mapping[str, Any] | None
) -> NodeDescription:
    parameters = dict(entry.get("parameters") or {})
    if camera is not None:
        parameters["camera"] = str(camera["name"])
        name = camera_node_name(camera)
        size = {key: camera[key] for key in ("width", "height", "depth") if key in camera}
        parameters["driver"] = {**parameters["driver"], "camera": parameters["camera"], **size}
    if "driver" in parameters:  # a mapping, which ROS parameters cannot hold
        driver = parameters["driver"]
        if "namespace" in driver:  # it uses topics by itself
            driver = {**driver, "namespace": _resolved(namespace, str(driver["namespace"] or ""))}
        parameters["driver"] = json.dumps(driver)
    return NodeDescription(
        name,
        str(entry["executable"]),
        str(entry["module"]),
        joined(namespace, str(entry.get("namespace") or "")),
        _flat(parameters),
        dict(entry.get("remappings") or {}),
    )


def joined(namespace: str, relative: str) -> str:
    """A namespace below another; both may be empty or `/`."""
    parts = [part for part in f"{namespace}/{relative}".split("/") if part]
    return "/" + "/".join(parts)


def _resolved(namespace: str, given: str) -> str:
    """What a driver's namespace means beside its node, as ROS understands names."""
    return given if given.startswith("/") else joined(namespace, given)


def _check(name: str, entry: Mapping[str, Any]) -> None:
    unknown = sorted(set(entry) - _KEYS)
    missing = [key for key in ("executable", "module") if not entry.get(key)]
    if unknown or missing:
        raise NodeTableError(
            f"the node nodes.{name} cannot be started",
            got=f"unknown {unknown}" if unknown else f"no {missing[0]}",
            expected=sorted(_KEYS),
        )


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = _of_one_type(value)
    return flat


def _of_one_type(value: Any) -> Any:
    """The same value; a list in which one number is a float is one of floats: ROS has no other."""
    if isinstance(value, list) and {type(item) for item in value} == {int, float}:
        return [float(item) for item in value]
    return value
