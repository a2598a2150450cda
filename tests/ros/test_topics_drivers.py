"""Drivers over topics of somebody else's nodes."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray

from drivers.base import DriverError, DriverTimeout
from drivers.gripper.topics import TopicsGripper
from robot_rl.ros import conversions, qos
from robot_rl.ros.faults import SensorLate


class Publisher:
    """Somebody else's node, which publishes `make()` again and again."""

    def __init__(self, namespace):
        self.listener = Listener(namespace)
        self._made = []
        self._ending = threading.Event()
        self._thread = None

    def publish(self, period, **topics):
        """Publish what each function makes of a stamp, in turn."""
        node, profile = self.listener.client.node, qos.sensor_publisher(1.0 / period)
        made = [
            (make, node.create_publisher(kind, topic, profile))
            for topic, (kind, make) in topics.items()
        ]

        def run():
            while not self._ending.wait(period):
                stamp = time.time_ns()
                for make, publisher in made:
                    publisher.publish(make(stamp))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def silence(self):
        self._ending.set()
        self._thread.join()

    def close(self):
        if self._thread is not None:
            self.silence()
        self.listener.close()


@pytest.fixture
def publisher(request, opened):
    return opened(Publisher(f"/topics{abs(hash(request.node.name)) % 10**6}"))


def gripper(publisher, **options):
    options = {"joint": "knuckle", "open_at": 0.0, "closed_at": 0.8, **options}
    return TopicsGripper(namespace=publisher.listener.client.namespace, **options)


def joints(position):
    return lambda s: conversions.joint_state_message(["elbow", "knuckle"], [9.0, position], None, s)


def test_a_gripper_s_joint_becomes_zero_to_one_and_back(publisher, connected):
    publisher.publish(0.02, joint_states=(JointState, joints(0.6)))
    heard = publisher.listener.hear("gripper_controller/commands", Float64MultiArray, 10)
    driver = connected(gripper(publisher))
    assert driver.read().position == pytest.approx(0.75)
    publisher.listener.until(lambda: driver.command(0.5) or heard)
    assert list(heard[-1].data) == pytest.approx([0.4])
    with pytest.raises(DriverError, match="a gripper cannot go there"):
        driver.command(float("nan"))
    driver.stop()
    publisher.listener.until(lambda: list(heard[-1].data) == pytest.approx([0.6]))
    publisher.silence()
    time.sleep(0.6)
    with pytest.raises(SensorLate, match="joint_states is too old"):
        driver.read()


def test_a_controller_may_take_plain_numbers(publisher, connected):
    publisher.publish(0.02, joint_states=(JointState, joints(0.0)))
    heard = publisher.listener.hear("grip", Float64, 10)
    driver = connected(gripper(publisher, command_topic="grip", command_type="float64"))
    publisher.listener.until(lambda: driver.command(1.0) or heard)
    assert heard[-1].data == pytest.approx(0.8)


def test_what_is_not_there_is_named(publisher, connected):
    publisher.publish(0.02, joint_states=(JointState, joints(0.0)))
    with pytest.raises(DriverTimeout, match=r"joint 'finger' on /topics\d+/joint_states"):
        connected(gripper(publisher, joint="finger", timeout_s=0.5))
    with pytest.raises(DriverError, match="expected: float64 or float64_array"):
        gripper(publisher, command_type="action")
