"""The simulated gripper and camera: nodes of their own that look at the simulated arm's world."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener, Running
from omegaconf import OmegaConf
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import Float64

from drivers.arm.sim_node import SimArmNode
from drivers.base import DriverError, DriverTimeout
from drivers.camera.node import CameraNode
from drivers.camera.sim import SimCamera
from drivers.gripper.node import GripperNode
from policies import registry
from robot_rl.config import compose
from robot_rl.env.sim.cameras import CameraError, SceneRenderer
from robot_rl.env.sim.world import GripperMotor
from robot_rl.env.task import Task
from robot_rl.ros import qos
from robot_rl.ros.conversions import image_array, to_nanoseconds
from robot_rl.ros.faults import BadMeasurement

SIZE = {"width": 48, "height": 36}


@cache
def simulation(task):
    """The arguments that all simulated drivers share."""
    config = OmegaConf.to_container(compose([f"task={task}"]), resolve=True)
    robot = config["robot"]
    shared = {"task": config["task"]["environment"]}
    return {**shared, "model": robot["model"], "gripper": robot["gripper"]}, robot


class Cell:
    """A simulated arm with its gripper and one camera, each in a node of its own."""

    def __init__(self, namespace):
        self.namespace = namespace
        self.shared, self.robot = simulation("pick_cube")
        self.listener = Listener(namespace)
        self.states = self.listener.hear("gripper/state", JointState)
        self.images = self.listener.hear("front/color/image_raw", Image)
        self.depths = self.listener.hear("front/aligned_depth_to_color/image_raw", Image)
        self.infos = self.listener.hear("front/color/camera_info", CameraInfo)
        self.commands = self.listener.client.node.create_publisher(
            Float64, "gripper/command", qos.command_publisher(10.0)
        )
        self.arm = self.start_arm()
        device = {**self.shared, "namespace": namespace}
        gripper = {"_target_": "drivers.gripper.sim.SimGripper", **device}
        camera = {"_target_": "drivers.camera.sim.SimCamera", **device, **SIZE}
        camera |= {"camera": "wrist", "depth": True, "rate_hz": 20.0}
        self.others = [
            Running(GripperNode, namespace, gripper),
            Running(CameraNode, namespace, camera, camera="front"),
        ]
        self.listener.until(lambda: self.states and self.images and self.depths, 120.0)

    def start_arm(self):
        low, high = (self.robot["limits"][f"workspace_{end}"] for end in ("low", "high"))
        driver = {"_target_": "drivers.arm.sim.SimArm", **self.shared, "stale_after_s": 5.0}
        driver["home_joints"] = self.robot["home_joints"]
        limits = {"limits.workspace_low": low, "limits.workspace_high": high}
        return Running(SimArmNode, self.namespace, driver, **limits)

    def close(self):
        for node in (*self.others, self.arm):
            node.close()
        self.listener.close()


@pytest.fixture(scope="module")
def cell():
    made = Cell("/cell")
    yield made
    made.close()


def test_the_gripper_moves_the_fingers_of_the_world(cell):
    assert cell.states[-1].position[0] == pytest.approx(0.0, abs=0.05)
    cell.commands.publish(Float64(data=1.0))
    cell.listener.until(lambda: cell.states[-1].position[0] > 0.95)
    there, _ = cell.arm.node.driver.gripper_position()
    assert cell.states[-1].position[0] == pytest.approx(there, abs=0.02)
    cell.commands.publish(Float64(data=0.0))
    cell.listener.until(lambda: cell.states[-1].position[0] < 0.05)


def test_the_camera_shows_the_world_as_it_is(cell):
    world = cell.arm.node.driver._world
    renderer = SceneRenderer(world, *SIZE.values())
    there, far = renderer.color("wrist"), renderer.depth("wrist")
    renderer.close()
    image, depth = image_array(cell.images[-1]), image_array(cell.depths[-1])
    assert image.std() > 10
    assert np.abs(image.astype(int) - there).mean() < 2.0
    assert np.abs(depth.astype(int) - far).mean() < 20.0
    stamps = [to_nanoseconds(message.header.stamp) for message in cell.images]
    assert stamps == sorted(set(stamps))
    assert np.diff(stamps).mean() > 0.04e9  # 20 a second, fewer on a busy machine
    k = cell.infos[-1].k
    assert k[0] == k[4] == pytest.approx(18.0 / np.tan(np.deg2rad(30.0)))  # fovy is 60 degrees
    assert (k[2], k[5]) == (23.5, 17.5)


@pytest.mark.slow
def test_when_the_arm_is_gone_nothing_old_is_published_and_all_comes_back(cell):
    cell.arm.close()
    cell.listener.until(lambda: _all_complain(cell), 60.0)
    counts = len(cell.states), len(cell.images)
    last = to_nanoseconds(cell.images[-1].header.stamp)
    cell.listener.until(lambda: _all_complain(cell))
    assert counts == (len(cell.states), len(cell.images))
    cell.arm = cell.start_arm()
    cell.listener.until(
        lambda: len(cell.states) > counts[0] + 3 and len(cell.images) > counts[1] + 3, 60.0
    )
    assert to_nanoseconds(cell.images[counts[1]].header.stamp) > last


def _all_complain(cell):
    newest = {}
    for message in cell.listener.heard["/diagnostics"]:
        newest[message.status[0].name] = message.status[0]
    bad = [status for status in newest.values() if "sim/state" in status.message]
    return len(bad) == 2


def test_a_copy_of_another_world_is_refused(cell):
    other, _ = simulation("reach")
    camera = SimCamera(**_made(other), camera="wrist", **SIZE, namespace=cell.namespace)
    camera.connect()
    with pytest.raises(BadMeasurement, match=r"another simulated model.*same task and model"):
        camera.read(10.0)
    camera.close()


def test_a_camera_that_is_not_in_the_model_and_a_world_that_is_not_there():
    shared, _ = simulation("reach")
    with pytest.raises(DriverError, match=r"no such camera; got: frond; expected: .*front"):
        SimCamera(**_made(shared), camera="frond")
    camera = SimCamera(**_made(shared), camera="front", **SIZE, namespace="/nowhere")
    camera.connect()
    with pytest.raises(DriverTimeout, match=r"no new simulated state on /.*sim/state"):
        camera.read(0.2)
    camera.close()
    with pytest.raises((DriverError, CameraError), match="not connected"):
        camera.read(0.2)


def _made(shared):
    families = {"task": Task, "gripper": GripperMotor}
    made = {name: registry.make(shared[name], family) for name, family in families.items()}
    return {**shared, **made}
