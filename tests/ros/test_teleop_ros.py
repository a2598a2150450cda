"""Teleoperation over ROS 2: devices that are topics, and the node over any device."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from geometry_msgs.msg import PoseStamped, TwistStamped
from listening import Listener, Running
from sensor_msgs.msg import Joy
from std_srvs.srv import Trigger

from drivers.base import DriverError
from drivers.teleop.base import Shaping
from drivers.teleop.node import TeleopNode
from drivers.teleop.topics import JoyTopic, TwistTopic
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.env.input_device import TeleopInput
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.session import Session
from robot_rl.ros import qos
from robot_rl.ros.conversions import twist_array, twist_message

NAMESPACE = f"/teleop{os.getpid()}"


@pytest.fixture
def listener(opened):
    return opened(Listener(NAMESPACE))


def test_a_joy_topic_moves_and_is_lost_when_it_falls_silent_until_it_speaks_again(
    listener, connected
):
    device = connected(JoyTopic(Shaping(gripper_button="button_0"), namespace=NAMESPACE))
    assert not device.read().moving
    publisher = listener.client.node.create_publisher(Joy, "joy", 10)
    grippers, pressed = [], set()

    def driven():
        publisher.publish(Joy(axes=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], buttons=[1, 1]))
        state = device.read()
        grippers.append(state.gripper)
        pressed.update(state.buttons)
        return state.motion[0] == 1.0 and 1.0 in grippers

    listener.until(driven)
    assert pressed == {"button_0", "button_1"}
    assert grippers.count(1.0) == 1  # held down, it counts once
    with pytest.raises(DriverError, match=r"joy has fallen silent; .* at least every 250 ms"):
        listener.until(lambda: not device.read().moving)
    for _ in range(2):
        with pytest.raises(DriverError, match="fallen silent"):
            device.connect()
    publisher.publish(Joy(axes=[0.0] * 6))
    listener.until(lambda: reconnected(device))
    time.sleep(2 * device.timeout_s)
    assert not device.read().moving  # at rest it need not speak
    listener.client.node.destroy_publisher(publisher)
    with pytest.raises(DriverError, match="fallen silent"):
        listener.until(lambda: device.read().moving)


def reconnected(device):
    try:
        device.connect()
    except DriverError:
        return False
    return True


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_axes_that_are_not_finite_are_no_device_at_rest(listener, connected, number):
    device = connected(JoyTopic(namespace=NAMESPACE))
    publisher = listener.client.node.create_publisher(Joy, "joy", 10)

    def read(axes):
        publisher.publish(Joy(axes=axes))
        return device.read().moving

    listener.until(lambda: read([1.0] + [0.0] * 5))
    with pytest.raises(
        DriverError, match=r"joy gives axes that are not finite; got: \[0.0, (nan|inf)"
    ):
        listener.until(lambda: read([0.0, number] + [0.0] * 4) and False)


def test_a_device_that_dies_in_the_middle_of_an_intervention_gives_no_policy_the_robot(
    listener, opened
):
    device = JoyTopic(Shaping(dead_zone=0.0), namespace=NAMESPACE)
    inbox = OperatorInbox(float("inf"))
    env = opened(
        Session(
            make_env(compose(["task=reach"])),
            inbox,
            hand_back_s=0.1,
            devices=[TeleopInput(device, inbox)],
        )
    )
    publisher = listener.client.node.create_publisher(Joy, "joy", 10)
    still = np.zeros(len(env.schema.action_names), np.float32)
    env.reset(seed=3)

    def driven(axes):
        publisher.publish(Joy(axes=axes))
        return env.step(still)[-1]["intervened"]

    listener.until(lambda: driven([1.0] + [0.0] * 5))
    time.sleep(2 * device.timeout_s)
    with pytest.raises(RobotInterrupted, match=r"device is gone.*joy has fallen silent"):
        env.step(still)
    with pytest.raises(RobotInterrupted, match="device is gone"):
        env.reset(seed=4)


def test_a_twist_topic_is_scaled_and_lost_when_it_falls_silent(listener, connected):
    device = connected(TwistTopic(Shaping(dead_zone=0.0), namespace=NAMESPACE))
    publisher = listener.client.node.create_publisher(
        TwistStamped, "teleop/command", qos.command_publisher(50.0)
    )
    velocity = np.array([0.05, 0.0, 0.0, 0.0, 0.0, 0.25])

    def driven():
        publisher.publish(twist_message(velocity, time.time_ns()))
        return np.allclose(device.read().motion[[0, 5]], (0.5, 0.5), atol=1e-6)

    listener.until(driven)
    with pytest.raises(DriverError, match="teleop/command has fallen silent"):
        listener.until(lambda: not device.read().moving)


def twists(listener):
    return listener.client.node.create_publisher(
        TwistStamped, "teleop/command", qos.command_publisher(50.0)
    )


def test_a_twist_in_the_tools_frame_moves_along_its_axes(listener, connected):
    device = connected(TwistTopic(Shaping(dead_zone=0.0, rotation=np.pi), namespace=NAMESPACE))
    publisher = twists(listener)
    quarter = np.array([0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)])  # about z: its x is the base's y

    def moved(frame):
        publisher.publish(twist_message([0.05, 0, 0, 0.25, 0, 0], time.time_ns(), frame))
        return device.read(quarter).motion

    for frame, expected in [
        ("base", [-0.5, 0, 0, -0.5, 0, 0]),  # as an operator sees it who faces the robot
        ("tcp", [0, 0.5, 0, 0, 0.5, 0]),
        ("", [-0.5, 0, 0, -0.5, 0, 0]),
    ]:
        listener.until(lambda f=frame, e=expected: np.allclose(moved(f), e, atol=1e-6))
    listener.until(lambda: np.allclose(moved("tcp"), [0, 0.5, 0, 0, 0.5, 0], atol=1e-6))
    with pytest.raises(DriverError, match="tool's frame, which is not known here"):
        device.read(None)
    with pytest.raises(DriverError, match="frame_id says in which frame"):
        TwistTopic(Shaping(frame="tool"))


@pytest.mark.parametrize(
    ("frame", "late_s", "said"),
    [
        ("camera_link", 0.0, r"teleop/command: .*frame_id camera_link; expected: base or tcp"),
        (
            "base",
            1.0,
            r"teleop/command has no current stamp; got: 1\.\d+ s before .* 250 ms",
        ),
        (
            "base",
            -1.0,
            r"teleop/command has no current stamp; got: -(1\.0|0\.[4-9])\d* s before",
        ),
        ("base", None, "teleop/command has no current stamp; got: no stamp"),
    ],
)
def test_a_twist_of_another_frame_or_time_is_a_lost_device(
    listener, connected, frame, late_s, said
):
    device = connected(TwistTopic(Shaping(dead_zone=0.0), namespace=NAMESPACE))
    publisher = twists(listener)

    def moves(frame, late_s):
        stamp = 0 if late_s is None else time.time_ns() - int(1e9 * late_s)
        publisher.publish(twist_message([0.05, 0, 0, 0, 0, 0], stamp, frame))
        return device.read().moving

    listener.until(lambda: moves("base", 0.0))
    with pytest.raises(DriverError, match=said):
        listener.until(lambda: not moves(frame, late_s) and False)
    listener.until(lambda: moves_again(device, moves))


def moves_again(device, moves):
    try:
        return moves("base", 0.0)
    except DriverError:
        time.sleep(0.02)
        return False


def test_the_node_publishes_motion_and_calls_the_services_of_the_buttons(listener, opened):
    called = []

    def serve(request, answer):
        called.append("success")
        answer.success = True
        return answer

    listener.client.node.create_service(Trigger, "success", serve)
    commands = listener.hear("teleop/command", TwistStamped)
    front = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    driver = {
        "_target_": "scripted_device.ScriptedDevice",
        "script": [*[front] * 50, *["enter", front] * 50],
        "events": {"enter": "success"},
    }
    opened(Running(TeleopNode, NAMESPACE, driver, full_translation=0.2))
    listener.until(lambda: any(twist_array(m)[0] == 0.2 for m in commands))
    listener.until(lambda: called)
    assert commands[-1].header.frame_id == "base"
    listener.reports("motion", "+0.00 +0.00 +0.00 +0.00 +0.00 +0.00")


def test_a_pose_that_is_none_ends_no_teleoperation(listener, opened):
    commands = listener.hear("teleop/command", TwistStamped)
    poses = listener.client.node.create_publisher(PoseStamped, "current_pose", 10)
    driver = {"_target_": "scripted_device.ScriptedDevice", "script": [[0.0] * 6] * 2000}
    opened(Running(TeleopNode, NAMESPACE, driver))
    listener.until(lambda: commands)
    listener.until(lambda: poses.get_subscription_count() > 0)
    none = PoseStamped()
    none.pose.orientation.w = 0.0  # as before a controller knows one
    poses.publish(none)
    listener.reported("quaternion")
    heard = len(commands)
    listener.until(lambda: len(commands) > heard + 5)


def test_a_stop_is_said_until_the_arm_has_heard_it_and_what_it_answers_is_shown(listener, opened):
    heard = []

    def serve(request, answer):
        heard.append("stop")
        answer.success, answer.message = False, "the arm did not take the stop"
        return answer

    driver = {
        "_target_": "scripted_device.ScriptedDevice",
        "script": ["esc"],
        "events": {"esc": "stop"},
    }
    opened(Running(TeleopNode, NAMESPACE, driver))
    listener.reported("use its emergency stop")
    listener.client.node.create_service(Trigger, "stop", serve)
    listener.reported("the arm did not take the stop")
    assert heard


def test_the_button_reset_ends_the_episode_and_does_not_drive_the_arm_off(listener, opened):
    called = []

    def serve(name):
        def answered(request, answer):
            called.append(name)
            answer.success = True
            return answer

        listener.client.node.create_service(Trigger, name, answered)

    serve("reset")  # the arm's own
    serve("episode/reset")
    driver = {
        "_target_": "scripted_device.ScriptedDevice",
        "script": [*["x", [0.0] * 6] * 50],
        "events": {"x": "reset"},
    }
    opened(Running(TeleopNode, NAMESPACE, driver))
    listener.until(lambda: len(called) > 1)
    assert set(called) == {"episode/reset"}
