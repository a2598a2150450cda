"""A device node as a process of its own says why it cannot run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from robot_rl.processes.waiting import wait_until

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening  # a ROS domain of this test process's own, which the node inherits
import rclpy
from rclpy.signals import SignalHandlerOptions

from drivers.arm.node import ArmNode
from drivers.arm.sim_node import SimArmNode
from drivers.camera.node import CameraNode
from drivers.gripper.node import GripperNode
from drivers.teleop.node import TeleopNode
from drivers.twin.node import TwinNode
from robot_rl.ros import nodes


def run_gripper_node(driver):
    assert listening  # imported for what it sets
    words = ["--ros-args", "-p", f"driver:={json.dumps(json.dumps(driver))}"]
    return subprocess.run(
        [sys.executable, "-m", "drivers.gripper.node", *words],
        capture_output=True,
        text=True,
        timeout=60.0,
    )


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"_target_": "drivers.gripper.nothing.Nothing"}, "drivers.gripper.nothing"),
        ({"_target_": "robot_rl.run.RunDirectory", "path": 3}, "is no Gripper"),
        # Of the constructor, and no error of this package.
        ({"_target_": "drivers.gripper.robotiq.Robotiq2F", "address": 3}, "Error"),
    ],
)
def test_a_driver_that_cannot_be_made_ends_the_node_with_the_reason(driver, reason):
    ended = run_gripper_node(driver)
    assert ended.returncode == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert "/gripper_node cannot be configured" in last
    assert reason in last


def arm_node(**parameters):
    """What the arm's node ends with; it has no driver, so it always does."""
    words = [word for pair in parameters.items() for word in ("-p", ":=".join(pair))]
    command = [sys.executable, "-m", "drivers.arm.node", "--ros-args", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 2
    return done.stderr.strip().splitlines()[-1]


def test_whole_numbers_serve_where_a_node_takes_floats():
    given = {
        "limits.workspace_low": "[0, -1, 0]",
        "limits.max_force": "40",
        "reset.pose": "[0, 0, 1, 1, 0, 0, 0]",
    }
    assert "the parameter 'driver' names no driver" in arm_node(**given)
    refused = arm_node(**{"limits.workspace_low": "[low, lower, lowest]"})
    assert "'limits.workspace_low' of /arm cannot have this value" in refused
    assert "got: ['low', 'lower', 'lowest']; expected: floats" in refused


@contextlib.contextmanager
def silent_camera(path):
    """A device file whose opening never ends; yields what tells whether somebody has."""
    os.mkfifo(path)
    held = []

    def opened():
        with contextlib.suppress(OSError):  # nobody is there to read
            held.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return held

    try:
        yield opened
    finally:
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.slow  # it waits for the device for 5 s
def test_a_device_whose_opening_hangs_does_not_keep_the_node_from_ending(tmp_path):
    pytest.importorskip("av", reason="needs the extra uvc")
    path = tmp_path / "camera"
    driver = json.dumps({"_target_": "drivers.camera.uvc.UvcCamera", "device": str(path)})
    words = ["--ros-args", "-p", f"driver:={json.dumps(driver)}"]
    command = [sys.executable, "-m", "drivers.camera.node", *words]
    with (
        silent_camera(path) as opened,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node,
    ):
        try:
            assert wait_until(opened, 60.0, every_s=0.05)
            node.send_signal(signal.SIGTERM)
            _, log = node.communicate(timeout=60.0)
        finally:
            node.kill()
    assert node.returncode == 0
    assert "still connecting 5 s later" in log


def test_the_table_of_nodes_knows_the_parameters_of_all_of_them():
    """Else a cell that gives one would be refused."""
    found, of_a_process = {}, {"autostart", "start_type_description_service"}
    context = rclpy.Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        for kind in (ArmNode, SimArmNode, CameraNode, GripperNode, TeleopNode, TwinNode):
            node = kind(context=context)
            names = {name.partition(".")[0] for name in node.get_parameters_by_prefix("")}
            found.setdefault(kind.__module__.rpartition(".")[0], set()).update(names)
            node.destroy_node()
    finally:
        rclpy.shutdown(context=context)
    for package, names in found.items():
        known = {*nodes._OF_ALL, *nodes._PARAMETERS[package]}
        assert names - of_a_process == known - of_a_process, package
