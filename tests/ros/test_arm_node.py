"""The arm's node: it follows, it holds when nobody commands, and it refuses what it must."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import rclpy
from arm_cell import (
    ACTIVATE,
    DEACTIVATE,
    HOME,
    ArmCell,
    Commander,
    ahead,
    answer,
    asker,
    sim_arm,
)
from geometry_msgs.msg import PoseArray, WrenchStamped
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter as RosParameter
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from drivers.arm.sim_node import SimArmNode
from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.ros import conversions
from robot_rl.ros.conversions import to_nanoseconds
from robot_rl.ros.nodes import node_table
from robot_rl.ros.ros_client import RosClient, publisher_names


@pytest.fixture(scope="module")
def shared():
    cell = ArmCell(f"/arm_{os.getpid()}", sim_arm(), **{"reset.speed_translation": 0.2})
    yield cell
    cell.close()


@pytest.fixture
def cell(shared):
    """The arm at home, holding, with nothing latched."""
    trigger = shared.listener.trigger
    assert trigger("clear_errors")[0]
    assert trigger("sim/reset")[0]
    shared.until_mode("hold: ")
    shared.listener.until(lambda: np.abs(shared.pose()[:3] - HOME[:3]).max() < 1e-3)
    time.sleep(0.25)  # another commander may begin
    return shared


def set_parameter(cell, name, value):
    if isinstance(value, int):
        found = ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=value)
    else:
        kind = ParameterType.PARAMETER_DOUBLE_ARRAY
        found = ParameterValue(type=kind, double_array_value=value)
    parameter = Parameter(name=name, value=found)
    client = cell.listener.client
    request = SetParameters.Request(parameters=[parameter])
    return client.call(SetParameters, "arm/set_parameters", request, 10.0).results[0]


def test_the_measured_pose_follows_the_target(cell):
    joints = cell.listener.hear("joint_states", JointState)
    cell.stream(ahead(0.05), 60.0, until=lambda: cell.pose()[0] > HOME[0] + 0.045)
    assert cell.following()
    cell.listener.until(lambda: joints)
    assert list(joints[-1].name) == [f"joint{i}" for i in range(1, 8)]
    assert abs(to_nanoseconds(cell.poses[-1].header.stamp) - time.time_ns()) < 5_000_000_000
    assert cell.applied


def test_without_commands_it_holds(cell):
    before = cell.count("deadline")
    cell.stream(ahead(1.0), 60.0, until=lambda: cell.moved(HOME, 0.03))
    cell.until_mode("hold: no command for 200 ms")
    held = cell.pose()
    time.sleep(0.5)
    assert not cell.moved(held, 0.01)
    assert cell.count("deadline") > before


def refused(cell, reason, words, target, age=0.0):
    """The diagnostics that say so after such targets were refused, and the arm did not move."""
    start, before = cell.pose(), cell.count(reason)
    cell.stream(lambda _: target, 60.0, until=lambda: cell.count(reason) >= before + 3, age=age)
    assert not cell.moved(start, 2e-3)
    assert cell.facts(mode="hold")
    return cell.listener.reported(words)


def test_a_target_that_is_not_finite_is_refused_and_named(cell):
    target = HOME + 0.01
    target[2] = math.nan
    facts = refused(cell, "not_finite", "the target is not finite", target)
    assert int(facts["not_finite"]) >= 3


@pytest.mark.parametrize("age", [8.0, -8.0])
def test_a_stale_stamp_is_refused_and_named(cell, age):
    target = HOME + np.array([0.02, 0, 0, 0, 0, 0, 0])
    assert int(refused(cell, "stale_stamp", "stamp is not of now", target, age)["stale_stamp"]) >= 3


def test_a_stop_latches_until_a_person_clears_it(cell):
    trigger = cell.listener.trigger
    cell.stream(ahead(1.0), 60.0, until=cell.following)
    assert trigger("stop")[0]
    cell.until_mode("stopped: the service stop")
    before = cell.count("stopped")
    cell.stream(ahead(1.0), 60.0, until=lambda: cell.count("stopped") > before + 3)
    assert cell.mode().startswith("stopped")
    for service in ("sim/reset", "reset"):
        assert not trigger(service)[0]
    assert cell.listener.reported("stopped")["mode"] == "stopped"
    assert trigger("clear_errors")[0]
    cell.until_mode("hold")
    cell.stream(lambda _: cell.pose(), 60.0, until=cell.following)


def test_a_target_in_another_frame_is_refused_with_both_names(cell):
    commander, listener = cell.commander, cell.listener
    there = cell.pose()
    cell.stream(lambda _: there, 60.0, until=cell.following)

    def refused():
        commander.send(there + np.array([0.02, 0, 0, 0, 0, 0, 0]), frame="tool0")
        return "frame_id tool0" in listener.diagnostics()["last_refusal"]

    listener.until(refused)
    assert "expected: base" in listener.diagnostics()["last_refusal"]
    assert not cell.moved(there, 0.005)


def test_two_publishers_stop_it_and_are_named_until_a_person_clears_it(cell):
    cell.stream(lambda _: HOME, 60.0, until=cell.following)
    client = RosClient("intruder", cell.namespace)
    ending = threading.Event()
    other = Commander(client)

    def intrude():
        while not ending.wait(0.02):
            other.send(HOME - np.array([0, 0.02, 0, 0, 0, 0, 0]))

    thread = threading.Thread(target=intrude)
    thread.start()
    try:
        cell.stream(lambda _: HOME, 60.0, until=lambda: "several publishers" in cell.mode())
        assert cell.mode().startswith("stopped: ")
        assert f"{cell.namespace}/intruder_" in cell.mode()
        assert f"{cell.namespace}/listener_" in cell.mode()
        before, there = len(cell.applied), cell.pose()
        time.sleep(1.5)  # the intruder goes on alone
        assert cell.listener.trigger("clear_errors")[0]
        cell.until_mode("stopped: ")
        assert (len(cell.applied), cell.moved(there, 0.002)) == (before, False)
    finally:
        ending.set()
        thread.join()
        client.close()
    cell.stream(lambda _: HOME, 0.5)
    assert cell.mode().startswith("stopped: ")
    cell.listener.until(lambda: len(publisher_names(cell.listener.client.node, other.topic)) == 1)
    assert cell.listener.trigger("clear_errors")[0]
    cell.stream(lambda _: HOME, 60.0, until=cell.following)


def test_a_reset_retracts_and_moves_to_its_pose(cell):
    trigger = cell.listener.trigger
    goal = HOME + np.array([0.05, 0.05, -0.03, 0, 0, 0, 0])
    assert set_parameter(cell, "reset.pose", goal.tolist()).successful
    heights = len(cell.poses)
    done, message = trigger("reset")
    assert done, message
    assert np.abs(cell.pose()[:3] - goal[:3]).max() < 0.01
    assert max(p.pose.position.z for p in cell.poses[heights:]) > HOME[2] + 0.06


def begin_reset(cell):
    """Returns the future of the answer to a reset that is on its way."""
    far = HOME + np.array([0.15, -0.15, 0.1, 0, 0, 0, 0])
    assert set_parameter(cell, "reset.pose", far.tolist()).successful
    reset = asker(cell, Trigger, "reset")()
    cell.until_mode("reset")
    return reset


WAYPOINTS = [[0.0, 0.2, 0.2, -2.1, 0.0, 2.3, 0.785], [0.2, 0.2, -0.1, -2.2, 0.1, 2.4, 0.9]]
BY_JOINTS = {
    "reset.joints": [angle for waypoint in WAYPOINTS for angle in waypoint],
    "reset.speed_translation": 0.25,
    "reset.speed_joints": 1.0,
}


def test_a_reset_goes_by_joints_and_takes_the_elbow_along(opened):
    cell = opened(ArmCell(f"/joints_{os.getpid()}", sim_arm(), **BY_JOINTS))
    joints = cell.listener.hear("joint_states", JointState)
    cell.stream(lambda _: HOME, 60.0, until=cell.following)
    done, message = cell.listener.trigger("reset")
    assert done, message
    assert np.abs(np.array(joints[-1].position) - WAYPOINTS[1]).max() < 0.06
    through = cell.running.node.driver.forward_kinematics(np.array(WAYPOINTS[0]))
    passed = np.array([conversions.pose_array(pose) for pose in cell.poses])
    assert np.abs(passed[:, :3] - through[:3]).max(axis=1).min() < 0.01
    assert set_parameter(cell, "reset.pose", HOME.tolist()).successful
    refused, message = cell.listener.trigger("reset")
    assert not refused
    assert "needs one of the parameters reset.pose and reset.joints; got: both" in message


def test_what_a_person_teaches_is_what_a_reset_takes(cell, tmp_path):
    joints = cell.listener.hear("joint_states", JointState)
    before = cell.pose()
    command = [sys.executable, "-m", "robot_rl.cli", "teach", f"namespace={cell.namespace}"]
    said = subprocess.run(command, input="\n\n", capture_output=True, text=True, check=True).stdout
    file = tmp_path / "cell.yaml"
    file.write_text(
        "choices: {robot: topics}\nrobot: {joint_names: [a, b, c, d, e, f, g]}\nnodes:\n"
        "  arm: {parameters: {reset: {pose: [0.4,0,0.3,1,0,0,0]}, driver: {namespace: /c}}}\n"
        + said  # at the end of a cell that has nodes already
    )
    parameters = node_table(compose([f"cell={file}"]))[0].parameters
    assert "reset.pose" not in parameters  # it ends at joint positions instead
    found, held = parameters["reset.joints"], [*joints[-1].position]
    np.testing.assert_allclose(found, held * 2, atol=1e-3)
    assert not cell.moved(before, 1e-3)


def test_a_stop_ends_a_reset_at_once(cell):
    stop = asker(cell, Trigger, "stop")
    reset = begin_reset(cell)
    stop()
    result = answer(cell, reset)
    assert not result.success
    assert result.message == "the reset was given up: the service stop was called"


def test_a_reset_ends_when_its_client_falls_silent(opened):
    soon = {"limits.max_stamp_age": 1.0}
    cell = opened(ArmCell(f"/accompanied_{os.getpid()}", sim_arm(), **soon))
    cell.stream(lambda _: HOME, 60.0, until=cell.following)
    reset = begin_reset(cell)
    cell.stream(lambda _: HOME, 0.3)  # as a client that waits for its end does
    given_up = answer(cell, reset)
    assert not given_up.success
    assert "fell silent in the middle of its reset" in given_up.message
    cell.until_mode("hold: the client fell silent")


def test_a_node_that_is_not_active_refuses_a_reset_and_none_outlives_it(cell):
    change = asker(cell, ChangeState, "arm/change_state")
    reset = begin_reset(cell)
    assert answer(cell, change(transition=DEACTIVATE)).success
    given_up = answer(cell, reset)
    assert not given_up.success
    assert given_up.message == "the reset was given up: deactivated"
    assert cell.listener.trigger("reset") == (False, "the arm's node is not active")
    assert answer(cell, change(transition=ACTIVATE)).success
    cell.until_mode("hold: activated")
    before = len(cell.poses)
    cell.listener.until(lambda: len(cell.poses) > before + 5)
    held = cell.pose()
    time.sleep(0.5)
    assert not cell.moved(held, 0.01)
    assert not cell.mode().startswith("reset")


def test_a_force_sensor_is_zeroed_where_the_arm_holds_and_nothing_presses(opened):
    namespace = f"/zeroed_{os.getpid()}"
    cell = opened(
        ArmCell(namespace, {**sim_arm(), "_target_": "arm_cell.DriftedArm"}, rate_hz=20.0)
    )
    trigger, arm = cell.listener.trigger, cell.running.node.driver
    wrenches = cell.listener.hear("current_wrench", WrenchStamped)
    cell.stream(ahead(1.0), 60.0, until=cell.following)
    done, words = trigger("zero_ft")
    assert (done, "zero_ft needs a connected arm that holds" in words) == (False, True), words
    cell.until_mode("hold: no command")
    for pressed in ((40.0,), (-6.0, 6.0)):  # a contact, and a hand
        arm.pressed = pressed
        time.sleep(1.0)
        done, words = trigger("zero_ft")
        assert not done
        assert "not zeroed" in words
        assert "let nothing touch the tool" in words
        assert arm.offset == 6.0
    arm.pressed = (0.0,)
    time.sleep(1.0)
    assert trigger("zero_ft") == (True, "the force sensor reads zero now; it read 6.0 N")
    cell.listener.until(lambda: wrenches[-1].wrench.force.z == 0.0)
    cell.stream(ahead(1.0), 60.0, until=cell.following)


def test_an_arm_without_a_sensor_to_be_zeroed_offers_no_such_service(cell):
    offered = {name for name, _ in cell.listener.client.node.get_service_names_and_types()}
    assert f"{cell.namespace}/stop" in offered
    assert f"{cell.namespace}/zero_ft" not in offered


def test_a_malformed_reset_pose_is_refused(cell):
    result = set_parameter(cell, "reset.pose", [0.4, 0.0, 0.2, 0.0, 0.0, 0.0, 3.0])
    assert not result.successful
    assert "reset.pose: the orientation is not a rotation" in result.reason


@pytest.mark.parametrize("pose", [[0.45, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0], [0.45, 0, 0.2, 0, 0, 3.1]])
def test_a_malformed_reset_pose_is_refused_from_the_start_too(pose, opened):
    made = opened(
        ArmCell(f"/posed_{os.getpid()}", sim_arm(), **{"reset.pose": [float(v) for v in pose]})
    )
    success, message = made.listener.trigger("reset")
    assert not success
    assert "reset.pose" in message.partition(";")[0]
    heard = len(made.poses)
    made.listener.until(lambda: len(made.poses) > heard + 5)  # the node goes on


def test_a_seed_begins_its_episode(cell):
    objects = cell.listener.hear("object_poses", PoseArray)
    successes = cell.listener.hear("task/success", Bool)
    states = cell.listener.hear("sim/state", JointState)
    places = []
    for seed in (5, 6, 5):
        assert set_parameter(cell, "episode_seed", seed).successful
        assert cell.listener.trigger("sim/reset") == (True, f"episode {seed}")
        time.sleep(0.3)
        position = objects[-1].poses[0].position
        places.append((position.x, position.y, position.z))
    assert places[0] == places[2] != places[1]
    assert successes[-1].data is False
    assert states[-1].header.frame_id == cell.running.node.driver.fingerprint
    assert np.isfinite(np.array(states[-1].position)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limits.max_speed_translation", 50.0),
        ("limits.max_force", math.nan),
        ("limits.max_tilt", "wide"),
    ],
)
def test_a_parameter_out_of_range_is_named(name, value):
    with pytest.raises(RobotRLError, match=name):
        bare_node({name: value})


def bare_node(parameters):
    context = rclpy.Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        overrides = [RosParameter(name, value=value) for name, value in parameters.items()]
        return SimArmNode(context=context, parameter_overrides=overrides)
    finally:
        rclpy.shutdown(context=context)
