"""Two simulated arms in two namespaces are one robot."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import PATIENT, PATIENT_DRIVER, PATIENT_LIMITS, Listener, Running
from omegaconf import OmegaConf
from std_msgs.msg import Float64

from drivers.arm.sim_node import SimArmNode
from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_session
from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros.nodes import node_table
from robot_rl.ros.ros_client import RosClient

ARMS = ("left", "right")


def two_arms(namespace="two", task="reach", *more):
    words = ["robot=ros_sim_two", f"task={task}", "robot.gripper=false"]
    return compose([*words, f"robot.namespace={namespace}", *PATIENT, *more])


def test_an_operator_is_heard_at_each_of_two_arms(opened):
    config = two_arms("two", "reach", "+robot.discovery_s=0.1")  # no arm is there
    inbox = opened(make_session(config)).inbox
    operator = opened(RosClient("operator", "/two"))
    for arm in ARMS:
        operator.trigger(f"{arm}/success", 20.0)
        assert inbox.poll().events == ("success",)


def arm_nodes(config):
    """Namespace → the running node of an arm."""
    driver = OmegaConf.to_container(config.nodes.arm.parameters.driver, resolve=True)
    return {
        node.namespace: Running(
            SimArmNode,
            node.namespace,
            **{**node.parameters, **PATIENT_LIMITS, "driver": {**driver, **PATIENT_DRIVER}},
        )
        for node in node_table(config)
        if node.name == "arm"
    }


def test_clearing_one_of_two_stopped_arms_moves_neither(opened):
    config = two_arms("stopped_two")
    for node in arm_nodes(config).values():
        opened(node)
    env = opened(make_session(config))
    person = opened(RosClient("person", "/stopped_two"))
    still = np.zeros(12, np.float32)
    deadline = time.monotonic() + 60.0

    def heard(condition):
        while not condition():
            assert time.monotonic() < deadline
            env.operator.overhear()
            time.sleep(0.02)

    seen, _ = env.reset(seed=4)
    objects = env.robot.arms["left"].measurements.objects
    before = objects.value(objects.newest())
    for arm in ARMS:
        person.trigger(f"{arm}/stop", 20.0)
    while not env.step(still)[3]:
        assert time.monotonic() < deadline
    right = env.robot.arms["right"]
    heard(lambda: may_not_move(right))
    person.trigger("left/clear_errors", 20.0)
    heard(lambda: not may_not_move(env.robot.arms["left"]))
    assert set(env.operator.waits_for) == {"clear_errors"}
    # Nor does a loop move the left one that nobody keeps from trying.
    with pytest.raises(RobotInterrupted, match="/stopped_two/right/mode"):
        env.robot.reset(np.tile(seen["state/left/tcp_pose"], 2), np.random.default_rng(9))
    np.testing.assert_array_equal(objects.value(objects.newest()), before)
    person.trigger("right/clear_errors", 20.0)
    heard(lambda: not env.operator.waits_for)
    env.reset(seed=4)
    assert not env.step(still)[3]


def may_not_move(arm):
    try:
        arm.check_free()
    except RobotInterrupted:
        return True
    return False


def test_stopping_two_arms_leaves_their_grippers_as_they_were_told(opened):
    config = two_arms("gripping_two", task="pick_cube")
    for node in arm_nodes(config).values():
        opened(node)
    env = opened(make_session(config))
    person = opened(Listener("/gripping_two"))
    told = {arm: person.hear(f"{arm}/gripper/command", Float64, 100) for arm in ARMS}
    action = np.zeros(14, np.float32)
    action[[env.schema.action_names.index(f"{arm}/gripper") for arm in ARMS]] = 1.0, -1.0
    # A command that is published before the two have found each other is not heard.
    known = person.client.node.count_publishers
    person.until(lambda: all(known(f"{arm}/gripper/command") for arm in ARMS))
    env.reset(seed=4)
    person.until(lambda: all(told.values()))  # that the reset has opened them
    for commands in told.values():
        commands.clear()
    env.step(action)
    person.trigger("left/stop")
    steps, deadline = 2, time.monotonic() + 20.0
    while not env.step(action)[3]:
        steps += 1
        assert time.monotonic() < deadline
    person.until(lambda: {len(messages) for messages in told.values()} == {steps})
    assert {message.data for message in told["left"]} == {1.0}  # closed
    assert {message.data for message in told["right"]} == {0.0}


def test_two_arms_under_two_namespaces_move_by_their_own_columns_and_hold_together():
    config = two_arms()
    nodes = arm_nodes(config)
    assert list(nodes) == ["/two/left", "/two/right"]
    env = make_env(config)
    try:
        assert env.schema.action_names[:2] == ("left/x", "left/y")
        assert env.schema.action_names[6:8] == ("right/x", "right/y")
        first, _ = env.reset(seed=4)
        goals = [first[f"state/{arm}/object_poses"] for arm in ARMS]
        assert not np.allclose(*goals), "each has a scene of its own"
        action = np.zeros(12, np.float32)
        action[env.schema.action_names.index("right/y")] = 0.5
        seen, moved, truncated = first, dict.fromkeys(ARMS, 0.0), False
        while moved["right"] < 0.01 and not truncated:
            seen, _, _, truncated, _ = env.step(action)
            moved = {
                arm: abs(seen[f"state/{arm}/tcp_pose"][1] - first[f"state/{arm}/tcp_pose"][1])
                for arm in ARMS
            }
        assert moved["right"] >= 0.01
        assert moved["left"] < 0.002

        nodes.pop("/two/left").close()
        for sensor in env.robot.arms["left"].all_sensors:
            sensor.limit_s = 0.3
        with pytest.raises(RobotInterrupted, match="/two/left/"):  # noqa: PT012
            for _ in range(50):
                env.step(action)
        measured = {sensor.topic: sensor for sensor in env.robot.arms["right"].all_sensors}
        right = measured["/two/right/current_twist"]
        deadline = time.monotonic() + 10.0
        while np.abs(right.value(right.newest())).max() >= 0.005:  # the other one holds too
            assert time.monotonic() < deadline, "the right arm goes on"
            with pytest.raises(RobotInterrupted):
                env.step(action)  # and is asked nothing more
            time.sleep(0.02)
    finally:
        env.close()
        for node in nodes.values():
            node.close()
