"""The newest measurements of topics, read by one thread while others receive and forget."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening
from geometry_msgs.msg import PoseStamped

from robot_rl.ros import conversions
from robot_rl.ros.faults import SensorLate
from robot_rl.ros.ros_client import RosClient
from robot_rl.ros.sensors import Sensor


@pytest.fixture
def sensor(opened):
    assert listening  # imported for the ROS domain that it sets
    client = opened(RosClient("reader", f"/sensors_{os.getpid()}"))
    return Sensor(client, PoseStamped, "current_pose", 1.0, conversions.pose_array)


@pytest.fixture
def often_switched():
    """Threads that take turns after almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_what_is_forgotten_while_it_is_read_is_late(sensor, often_switched):
    ending, problems = threading.Event(), set()

    def read():
        while not ending.is_set():
            try:
                sensor.newest()
            except Exception as problem:
                problems.add(type(problem))

    reader = threading.Thread(target=read)
    reader.start()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        sensor.receive(conversions.pose_message([0, 0, 0, 0, 0, 0, 1.0], time.time_ns()))
        sensor.forget()
    ending.set()
    reader.join()
    assert problems == {SensorLate}


def test_messages_without_a_stamp_of_their_own_are_not_called_silence(sensor):
    message = conversions.pose_message([0, 0, 0, 0, 0, 0, 1.0], 0)
    until = time.monotonic() + sensor.limit_s + 0.2
    while time.monotonic() < until:
        sensor.receive(message)
        time.sleep(0.05)
    with pytest.raises(SensorLate, match="messages come, but all bear one and the same stamp"):
        sensor.newest()


@pytest.mark.parametrize(
    ("behind", "got"), [(2.0, r"2\.\d+ s ago by"), (-2.5, r"2\.[45]\d+ s ahead of")]
)
def test_what_is_received_in_time_but_measured_at_another_time_is_late(sensor, behind, got):
    def measure(behind):
        stamp = time.time_ns() - int(1e9 * behind)
        sensor.receive(conversions.pose_message([0, 0, 0, 0, 0, 0, 1.0], stamp))

    measure(behind)
    words = f"{sensor.topic} was not measured just now; got: {got} this machine's clock"
    with pytest.raises(SensorLate, match=rf"{words}.*at most 1000 ms.*clocks .* may differ"):
        sensor.newest()
    sensor.forget()
    measure(0.0)
    assert sensor.newest()


def test_of_pictures_only_the_newest_stays(sensor):
    client = RosClient("viewer", f"/pictures_{os.getpid()}")
    pictures = Sensor(client, PoseStamped, "picture", 1.0, conversions.pose_array, keep=1)
    first = time.time_ns()
    for topic in (sensor, pictures):
        for index in range(5):
            pose = [index, 0, 0, 0, 0, 0, 1.0]
            topic.receive(conversions.pose_message(pose, first + index * 10_000_000))
    assert sensor.value(sensor.nearest(first))[0] == 0
    assert pictures.value(pictures.nearest(first))[0] == 4
    client.close()


def test_a_topic_of_two_publishers_is_not_silent_so_a_person_can_say_start_once_one_has_left(
    sensor, opened
):
    namespace = f"/sensors_{os.getpid()}"
    pose = [0, 0, 0, 0, 0, 0, 1.0]

    def publish(name):
        client = opened(RosClient(name, namespace))
        publisher = client.node.create_publisher(PoseStamped, "current_pose", 1)
        timer = client.node.create_timer(
            0.02, lambda: publisher.publish(conversions.pose_message(pose, time.time_ns()))
        )
        return client, timer

    def until(found):
        deadline = time.monotonic() + 20.0
        while not found():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    publish("arm")
    until(lambda: sensor.trouble() is None)
    stranger, timer = publish("stranger")
    until(lambda: sensor.conflict() is not None)
    timer.cancel()
    stranger.close()
    ends = time.monotonic() + 1.5 * sensor.limit_s  # for so long nothing was believed
    until(lambda: time.monotonic() > ends)
    assert not sensor.is_silent
    until(lambda: not (sensor.forget() or sensor.conflict()))  # as a `start` does
