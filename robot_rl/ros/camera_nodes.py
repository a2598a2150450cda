"""Which node serves which camera of the observation: what cannot work is refused before it starts.

A camera that nobody serves, or one device that two nodes open, would otherwise come to light only
as a topic that stays silent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from policies import registry
from robot_rl.errors import RobotRLError
from robot_rl.ros.node_description import NodeDescription

Camera = Mapping[str, Any]
# Of an observed camera that does not say it, as in `robot_rl.env.sim.cameras.CameraOptions`.
_SIZE = {"width": 128, "height": 128}

# Where each is found, and how it is written.
_EXAMPLES = {
    "serial": ("as robot-rl doctor lists it", "SERIAL"),
    "device": ("a path that stays the same", "/dev/v4l/by-id/NAME"),
}


class CameraNodeError(RobotRLError):
    """A camera that no node can serve as the configuration has it."""


def camera_node_name(camera: Camera) -> str:
    """What the node of a camera is called."""
    return f"{camera['name']}_camera"


def check_each_camera(name: str, entry: Mapping[str, Any], cameras: Sequence[Camera]) -> None:
    """Check that the driver of a node for each camera can be told which camera it is.

    Raises:
        CameraNodeError: It cannot: it is one device, not one for each camera.
    """
    driver = (entry.get("parameters") or {}).get("driver") or {}
    if cameras and not registry.takes(driver, "camera"):
        raise CameraNodeError(
            f"the node nodes.{name} cannot be one for each camera",
            got=f"each_camera with {driver['_target_']}, which takes no `camera`",
            expected="a driver that can be told which camera it is, as the simulated one",
            hint=f"take nodes.{name} out, and {_line(cameras[0])}; and so on for each",
        )


def check_camera_nodes(
    cameras: Sequence[Camera],
    by_others: frozenset[str],
    table: Sequence[NodeDescription],
    resolved: Callable[[str, str], str],
) -> None:
    """Check that each camera is served by one node, and each node has a device of its own.

    Args:
        cameras: Those that are observed.
        by_others: Names of nodes that somebody else runs.
        table: The nodes.
        resolved: What a name means in a namespace.

    Raises:
        CameraNodeError: Names camera and node, and the line to write.
    """
    serving = [node for node in table if "camera" in node.parameters]
    _check_served(cameras, by_others, {str(n.parameters["camera"]) for n in serving})
    drivers = [
        (node, json.loads(node.parameters["driver"]))
        for node in serving
        if "driver" in node.parameters  # the node itself says that it needs one
    ]
    # Those without a serial number are told apart by the path of their device.
    _check_devices([(n, d.get("serial")) for n, d in drivers if _has_serial(d)], "serial")
    _check_devices(
        [(n, d.get("device")) for n, d in drivers if registry.takes(d, "device")], "device"
    )
    for node, driver in drivers:
        _check_topics(node, driver, resolved)


def _check_served(cameras: Sequence[Camera], by_others: frozenset[str], served: set[str]) -> None:
    alone = [
        camera
        for camera in cameras
        if str(camera["name"]) not in served and camera_node_name(camera) not in by_others
    ]
    if alone:
        name = alone[0]["name"]
        raise CameraNodeError(
            f"no node serves what is observed of {', '.join(str(c['name']) for c in alone)}",
            got=f"nodes for {', '.join(sorted(served)) or 'no camera'}",
            expected="one for each of observation.cameras",
            hint=f"{_line(alone[0])}; where somebody else publishes {name}/color/image_raw,"
            f" +nodes.{camera_node_name(alone[0])}=null",
        )


def _has_serial(driver: Mapping[str, Any]) -> bool:
    return registry.takes(driver, "serial") and not driver.get("recording")


def _check_devices(known: Sequence[tuple[NodeDescription, Any]], key: str) -> None:
    """Two nodes of one kind each open a device of their own."""
    given = [str(value) for _, value in known if value is not None]
    doubtful = [n for n, value in known if value is None or given.count(str(value)) > 1]
    # The only RealSense is found without its serial number, a webcam is not without its path.
    if doubtful and (len(known) > 1 or key == "device"):
        raise CameraNodeError(
            f"each camera needs a {key} of its own",
            got=", ".join(f"{node.process}: {value or 'none'}" for node, value in known),
            hint=f"name it, {_EXAMPLES[key][0]}, for example"
            f" \"++nodes.{doubtful[0].name}.parameters.driver.{key}='{_EXAMPLES[key][1]}'\"",
        )


def _check_topics(
    node: NodeDescription, driver: Mapping[str, Any], resolved: Callable[[str, str], str]
) -> None:
    """A driver that takes pictures from topics must not meet those of its own node."""
    camera = node.parameters["camera"]
    topics = [driver.get("depth_topic"), registry.argument(driver, "topic")]
    reads = {resolved(str(driver.get("namespace") or ""), str(t)) for t in topics if t}
    for kind in ("color", "aligned_depth_to_color"):
        name = f"{camera}/{kind}/image_raw"
        published = resolved(node.namespace, node.remappings.get(name, name))
        if published in reads:
            raise CameraNodeError(
                f"the node nodes.{node.name} publishes the pictures that it reads",
                got=published,
                expected="a topic of another name to read, or no node",
                hint="somebody publishes there already what is observed: take the node out, and"
                f" write +nodes.{camera_node_name({'name': camera})}=null",
            )


def _line(camera: Camera) -> str:
    """What a person writes for a node of its own, to be completed with the device."""
    size = ",".join(f"{key}:{camera.get(key, pixels)}" for key, pixels in _SIZE.items())
    return (
        f'write "+nodes.{camera_node_name(camera)}={{executable:camera_node,'
        f"module:drivers.camera.node,parameters:{{camera:{camera['name']},"
        "driver:{_target_:drivers.camera.realsense.RealSenseCamera,serial:'SERIAL',"
        f'{size}}}}}}}" (or another driver of hardware/cameras.md)'
    )
