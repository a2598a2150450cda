"""A second publisher of whatever a robot does or sees: it holds, says both names, and waits."""

from __future__ import annotations

import copy
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from geometry_msgs.msg import PoseArray, PoseStamped, TwistStamped, WrenchStamped
from listening import Listener, Running
from ros_cell import PATIENT, arm_node, until_begun
from sensor_msgs.msg import Image, JointState, Joy
from std_msgs.msg import Bool, Float64

from drivers.gripper.node import GripperNode
from robot_rl.config import compose
from robot_rl.env.factory import make_session
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros import conversions, qos
from robot_rl.ros.ros_client import RosClient
from robot_rl.run import FAULTS, RunDirectory

CAMERA = (
    "observation.cameras=[{_target_:robot_rl.env.sim.cameras.CameraOptions,name:front,"
    "width:8,height:6}]"
)
KINDS = {
    "target_pose": PoseStamped,
    "gripper/command": Float64,
    "joint_states": JointState,
    "current_pose": PoseStamped,
    "current_twist": TwistStamped,
    "current_wrench": WrenchStamped,
    "gripper/state": JointState,
    "object_poses": PoseArray,
    "task/success": Bool,
    "front/color/image_raw": Image,
    "joy": Joy,
}
CASES = [(topic, rate) for topic in KINDS for rate in (1.0, 50.0, 500.0)]
QUICK = [("target_pose", 50.0), ("joint_states", 1.0)]


class Cell:
    """A simulated arm with gripper, camera and joystick, and the loop that moves it."""

    def __init__(self, namespace, run):
        words = ["robot=ros_sim", "task=pick_cube", f"robot.namespace={namespace}", CAMERA]
        teleop = ["teleop=joy", f"teleop.device.namespace={namespace}"]
        self.config = config = compose([*words, *teleop, *PATIENT, "observation.task_state=true"])
        self.namespace = namespace
        self.others = RosClient("devices", namespace)  # camera and joystick
        self._publish("front/color/image_raw", self._picture)
        self._publish("joy", lambda: Joy(axes=[0.0] * 6))
        self.arm = arm_node(config)
        gripper = {"_target_": "drivers.gripper.sim.SimGripper", "namespace": namespace}
        simulation = {name: config.simulation[name] for name in ("task", "model", "gripper")}
        self.gripper = Running(GripperNode, namespace, {**gripper, **plain(simulation)})
        self.listener = Listener(namespace)
        self.newest = {}
        for topic, kind in KINDS.items():
            self.listener.client.node.create_subscription(
                kind, topic, lambda m, t=topic: self.newest.update({t: m}),
                qos.sensor_subscription(1),
            )  # fmt: skip
        self.env = make_session(config, run)
        self.inbox = self.env.inbox

    def _publish(self, topic, make):
        kind = KINDS[topic]
        publisher = self.others.node.create_publisher(kind, topic, qos.sensor_publisher(30.0))
        self.others.node.create_timer(1 / 30, lambda: publisher.publish(make()))

    def _picture(self):
        return conversions.image_message(np.zeros((6, 8, 3), np.uint8), time.time_ns(), "front")

    def step(self):
        return self.env.step(np.zeros(len(self.env.schema.action_names), np.float32))

    def position(self):
        """Where the arm truly is (3,) [m]."""
        return self.arm.node.driver.read().tcp_pose[:3]

    def close(self):
        self.env.close()
        for part in (self.listener, self.gripper, self.arm, self.others):
            part.close()


def plain(config):
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.create(config), resolve=True)


class Intruder:
    """Repeats what a topic said last, 15 cm and 0.5 rad off, as another node."""

    def __init__(self, cell, topic, rate):
        self.began = None  # when it sent its first message, on the steady clock [s]
        self._message = copy.deepcopy(cell.newest[topic])
        self.client = RosClient("intruder", cell.namespace)
        commands = topic.endswith(("target_pose", "command"))
        profile = (qos.command_publisher if commands else qos.sensor_publisher)(rate)
        self._publisher = self.client.node.create_publisher(KINDS[topic], topic, profile)
        self._thread = threading.Thread(target=self._send, args=(1.0 / rate,))
        self._ending = threading.Event()
        self._thread.start()

    def _send(self, period):
        while not self._is_known():
            time.sleep(0.001)
        while not self._ending.is_set():
            self.began = self.began or time.monotonic()
            self._publisher.publish(self._wrong())
            self._ending.wait(period)

    def _is_known(self):
        """Whether all who listen to the topic would hear it."""
        topic = self._publisher.topic_name
        listening = len(self.client.node.get_subscriptions_info_by_topic(topic))
        return 1 < listening <= self._publisher.get_subscription_count()

    def _wrong(self):
        message = self._message
        if hasattr(message, "header"):
            message.header.stamp = conversions.header(time.time_ns()).stamp
        if hasattr(message, "pose"):
            message.pose.position.y = 0.15
        if isinstance(message, Float64):
            message.data = 1.0
        return message

    def close(self):
        self._ending.set()
        self._thread.join()
        self.client.close()


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    made = Cell("/second_source", RunDirectory(tmp_path_factory.mktemp("run")))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("topic", "rate"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_second_source_is_a_fault_until_a_person_says_start(cell, topic, rate, tmp_path, opened):
    env = cell.env
    until_begun(env, seed=3)
    for _ in range(5):
        cell.step()
    before = cell.position()
    intruder = opened(Intruder(cell, topic, rate))
    with pytest.raises(RobotInterrupted) as fault:  # noqa: PT012
        while not intruder.began or time.monotonic() < intruder.began + 10.0:
            cell.step()
    noticed = time.monotonic()
    time.sleep(1.0)
    moved = 1e3 * float(np.abs(cell.position() - before).max())
    said = str(fault.value)
    assert f"{cell.namespace}/intruder_" in said
    assert topic in said
    assert moved < 2.0
    known = len(cell.env.run.read_jsonl(FAULTS))
    cell.env.keep_faults()
    line = cell.env.run.read_jsonl(FAULTS)[known]
    assert f"{cell.namespace}/intruder_" in line["problem"]
    after = 1e3 * (noticed - (intruder.began or noticed))
    sys.stdout.write(f"{topic} at {rate:g} Hz: told after {after:.0f} ms, {moved:.2f} mm\n")
    assert_waits(cell, before)
    intruder.close()
    assert_waits(cell, before)
    cell.listener.trigger("clear_errors")
    cell.listener.trigger("gripper/clear_errors")
    cell.listener.until(lambda: cell.inbox.missing() == "")
    begin_again(cell)


def assert_waits(cell, before):
    for _ in range(2):
        with pytest.raises(RobotInterrupted):
            cell.env.reset(seed=4)
        time.sleep(0.2)
    assert OperatorEvent.START in cell.env.operator.waits_for
    assert np.abs(cell.position() - before).max() < 0.002


def begin_again(cell):
    deadline = time.monotonic() + 60.0
    while True:
        cell.listener.trigger("start")
        try:
            return cell.env.reset(seed=4)
        except RobotInterrupted:
            assert time.monotonic() < deadline
            time.sleep(0.2)
