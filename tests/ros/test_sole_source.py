"""A topic has one source: a second one is named; one that is started again is not a second one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening
import rclpy
from hypothesis import given
from hypothesis import strategies as st
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Float64

from robot_rl.processes.waiting import wait_until
from robot_rl.ros import qos
from robot_rl.ros.ros_client import RosClient, light_executor
from robot_rl.ros.sole_source import SequenceNumbers, SoleSubscription


def heard(numbers, messages):
    """Whether each message goes on: its number, when it was received and, if before, sent [s]."""
    return [numbers.accepts(one[0], one[-1], one[1]) for one in messages]


def test_one_publisher_may_lose_messages_and_two_are_noticed_at_the_first_message():
    assert all(heard(SequenceNumbers(), [(7, 0.0), (8, 0.1), (12, 0.2), (60, 0.22), (700, 1.0)]))
    assert heard(SequenceNumbers(), [(100, 0.0), (101, 0.1), (5, 0.15)])[-1] is False
    assert heard(SequenceNumbers(), [(100, 0.0), (101, 0.1), (5000, 0.15)])[-1] is False
    # Of the same age: it is noticed when the first one speaks again.
    assert heard(SequenceNumbers(), [(100, 0.0), (102, 0.05), (101, 0.1)])[-1] is False


def test_one_that_is_started_again_is_followed_until_the_one_before_speaks_again():
    numbers = SequenceNumbers()
    assert all(heard(numbers, [(900, 0.0), (1, 2.0), (2, 2.02), (3, 2.04)]))
    assert not any(heard(numbers, [(901, 2.05)]))
    # However slowly both speak.
    assert heard(SequenceNumbers(), [(900, 0.0), (1, 0.5), (901, 1.0)]) == [True, True, False]


def test_what_waited_while_the_receiver_was_held_up_is_judged_by_when_it_was_sent():
    assert all(heard(SequenceNumbers(), [(900, 0.0, 10.0), (901, 2.0, 10.1), (1, 2.0, 11.5)]))


@given(st.lists(st.tuples(st.integers(0, 15), st.floats(0.001, 5.0)), max_size=60))
def test_no_sole_publisher_is_ever_taken_for_two(steps):
    numbers, number, now = SequenceNumbers(), 1, 0.0
    for lost, seconds in steps:
        number, now = number + 1 + lost, now + seconds
        assert numbers.accepts(number, now, now)


@given(
    st.tuples(st.integers(1, 10**6), st.floats(0.5, 500.0)),
    st.tuples(st.integers(1, 10**6), st.floats(0.5, 500.0)),
    st.floats(0.01, 1.0),
)
def test_two_that_go_on_sending_are_noticed(first, second, phase):
    (number, hz), (other, other_hz) = first, second
    lasting = 4.0 / min(hz, other_hz)
    sent = [(n / hz, number + n) for n in range(int(lasting * hz) + 1)]
    sent += [((phase + n) / other_hz, other + n) for n in range(int(lasting * other_hz) + 1)]
    numbers = SequenceNumbers()
    assert not all(numbers.accepts(number, at, at) for at, number in sorted(sent))


class Receiver:
    """Who listens to a topic in a namespace of its own."""

    def __init__(self, executor, **options):
        assert listening  # imported for the ROS domain that it sets
        self.namespace = f"/sole_{os.getpid()}_{time.monotonic_ns()}"
        self.client = RosClient("receiver", self.namespace, executor)
        self.taken, self.refused = [], []
        self.source = SoleSubscription(
            self.client.node,
            Float64,
            "number",
            lambda message: self.taken.append(message.data),
            qos.sensor_subscription(),
            refused=self.refused.append,
            **options,
        )

    def until(self, found):
        assert wait_until(found, 30.0), (len(self.taken), self.refused[-1:])

    def close(self):
        self.client.close()


@pytest.fixture(params=[light_executor, SingleThreadedExecutor])
def receiver(request, opened):
    return opened(Receiver(request.param))


def say(node, data, hz=50.0):
    publisher = node.create_publisher(Float64, "number", qos.sensor_publisher(hz))
    node.create_timer(1.0 / hz, lambda: publisher.publish(Float64(data=data)))


def test_another_node_is_named_with_the_first_and_never_heard(receiver, opened):
    first, other = (opened(RosClient(name, receiver.namespace)) for name in ("first", "other"))
    say(first.node, 1.0)
    receiver.until(lambda: len(receiver.taken) > 5)
    say(other.node, 2.0)
    receiver.until(lambda: "/other_" in receiver.source.problem())  # its name may come later
    assert f"{receiver.namespace}/first_" in receiver.source.problem()
    other.close()
    heard = len(receiver.taken)
    refused = len(receiver.refused)
    receiver.until(lambda: receiver.source.publishers == 1 and len(receiver.refused) > refused + 5)
    assert len(receiver.taken) == heard
    assert 2.0 not in receiver.taken
    receiver.source.forget()
    receiver.until(lambda: len(receiver.taken) > heard + 5)


def test_a_node_of_the_same_name_is_noticed_once_both_send(receiver, opened):
    first = opened(RosClient("twin", receiver.namespace))
    say(first.node, 1.0)
    receiver.until(lambda: len(receiver.taken) > 5)
    second = rclpy.create_node(
        first.node.get_name(), namespace=receiver.namespace, context=first.node.context
    )
    publisher = second.create_publisher(Float64, "number", qos.sensor_publisher(50.0))
    receiver.until(lambda: receiver.source.publishers == 2)
    heard = len(receiver.taken)
    receiver.until(lambda: len(receiver.taken) > heard + 5)  # it has not sent anything yet
    assert not receiver.source.problem()
    publisher.publish(Float64(data=2.0))
    receiver.until(lambda: receiver.source.problem().count("/twin_") == 2)
    second.destroy_node()


def test_who_has_a_share_in_a_topic_is_heard_and_a_second_one_of_a_share_is_not(opened):
    receiver = opened(Receiver(light_executor, accepts=lambda message: message.data < 10.0))
    names = ("arm", "gripper", "other")
    arm, gripper, other = (opened(RosClient(name, receiver.namespace)) for name in names)
    say(arm.node, 1.0)
    say(gripper.node, 11.0)
    receiver.until(lambda: receiver.source.publishers == 2 and len(receiver.taken) > 50)
    assert (set(receiver.taken), receiver.source.problem()) == ({1.0}, "")
    say(other.node, 2.0)
    receiver.until(lambda: f"{receiver.namespace}/other_" in receiver.source.problem())


def test_a_process_that_is_killed_and_started_again_is_heard(receiver):
    command = [sys.executable, str(listening.__file__).replace("listening", "talking")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("_ROS_WHEELS_BOOTSTRAP_COMPLETE", None)
    for _ in range(2):
        heard = len(receiver.taken)
        talking = subprocess.Popen([*command, receiver.namespace], env=environment)
        try:
            receiver.until(lambda heard=heard: len(receiver.taken) > heard + 10)
        finally:
            talking.kill()
            talking.wait()
    assert not receiver.source.problem()
