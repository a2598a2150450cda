"""What stops the arm, or leaves it without a node, and what lets it go on."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from arm_cell import ACTIVATE, CONFIGURE, DEACTIVATE, HOME, ArmCell, ahead, answer, asker, sim_arm
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from drivers.arm.sim_node import SimArmNode
from drivers.base import DriverError
from robot_rl.ros import qos


def test_a_restarted_node_is_still_stopped(tmp_path):
    def begin():
        return ArmCell(f"/again_{os.getpid()}", sim_arm(), stop_folder=str(tmp_path))

    first = begin()
    assert first.listener.trigger("stop")[0]
    first.until_mode("stopped: the service stop")
    first.close()
    second = begin()
    second.until_mode("stopped: before this node started: the service stop was called")
    second.stream(lambda _: HOME, 60.0, until=lambda: second.count("stopped") > 3)
    assert second.listener.trigger("clear_errors")[0]
    second.until_mode("hold")
    second.close()
    assert list(tmp_path.iterdir()) == []  # a third one is free


def test_an_arm_is_given_no_target_before_somebody_asks_for_motion(tmp_path, opened):
    driver = {**sim_arm(), "_target_": "arm_cell.CountingArm"}
    cell = opened(ArmCell(f"/idle_{os.getpid()}", driver, stop_folder=str(tmp_path)))
    cell.until_mode("hold")
    arm, polled = cell.running.node.driver, len(cell.poses)
    cell.listener.until(lambda: len(cell.poses) > polled + 20)
    assert arm.targets == 0
    cell.stream(lambda _: HOME, 60.0, until=cell.following)
    cell.until_mode("hold: no command")
    given = arm.targets
    assert given > 0
    cell.listener.until(lambda: arm.targets > given + 20)  # it is held where it was led
    assert cell.listener.trigger("stop")[0]
    assert cell.listener.trigger("clear_errors")[0]
    cell.until_mode("hold: cleared")
    given, polled = arm.targets, len(cell.poses)
    cell.listener.until(lambda: len(cell.poses) > polled + 20)
    assert arm.targets == given


def test_a_node_in_another_namespace_finds_the_stop_of_its_arm(tmp_path, opened):
    driver = {**sim_arm(), "_target_": "arm_cell.AddressedArm"}
    for host, name in (("arm.invalid", "one"), ("ARM.invalid.", "two")):
        cell = opened(
            ArmCell(f"/{name}_{os.getpid()}", {**driver, "host": host}, stop_folder=str(tmp_path))
        )
        if name == "one":
            assert cell.listener.trigger("stop")[0]
            cell.until_mode("stopped")
    cell.until_mode("stopped: before this node started: the service stop was called")


def test_a_stop_just_after_a_clearing_is_kept_too(tmp_path, opened):
    cell = opened(ArmCell(f"/twice_{os.getpid()}", sim_arm(), stop_folder=str(tmp_path)))
    # Between two polls: there are none of a node that is not active.
    assert answer(cell, asker(cell, ChangeState, "arm/change_state")(transition=DEACTIVATE))
    for service in ("stop", "clear_errors", "stop"):
        assert cell.listener.trigger(service)[0]
    cell.until_mode("stopped: the service stop")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_stop_that_the_arm_does_not_take_is_kept_and_named(tmp_path, opened):
    driver = {**sim_arm(), "_target_": "arm_cell.UnstoppableArm"}
    cell = opened(ArmCell(f"/deaf_{os.getpid()}", driver, stop_folder=str(tmp_path)))
    done, message = cell.listener.trigger("stop")
    assert not done
    assert "the cable is out" in message
    assert len(list(tmp_path.iterdir())) == 1
    cell.until_mode("stopped: the service stop")
    cell.stream(lambda _: HOME, 60.0, until=lambda: cell.count("stopped") > 3)


def test_no_clear_of_before_a_stop_undoes_it():
    driver = {**sim_arm(), "_target_": "arm_cell.SlowlyClearedArm"}
    cell = ArmCell(f"/slow_{os.getpid()}", driver)
    arm = cell.running.node.driver
    try:
        clear, stop = (asker(cell, Trigger, name) for name in ("clear_errors", "stop"))
        first = clear()
        cell.listener.until(lambda: arm.clearing)  # the node's thread waits for the arm
        later = [clear() for _ in range(2)]
        stopped = stop()
        time.sleep(1.0)  # all of them have come in
        arm.goes_on.set()
        cell.listener.until(lambda: all(each.done() for each in (first, stopped, *later)))
        assert stopped.result().success
        assert [each.result().success for each in later] == [False, False]
        assert "a stop came meanwhile" in later[0].result().message
        cell.facts(mode="stopped")
        assert cell.listener.trigger("clear_errors")[0]
        cell.until_mode("hold")
    finally:
        arm.goes_on.set()
        cell.close()


def test_a_clear_after_the_stop_was_published_is_carried_out():
    driver = {**sim_arm(), "_target_": "arm_cell.SlowlyStoppedArm"}
    cell = ArmCell(f"/heard_{os.getpid()}", driver)
    arm = cell.running.node.driver
    try:
        clear, stop = (asker(cell, Trigger, name) for name in ("clear_errors", "stop"))
        stopped = stop()
        cell.until_mode("stopped: the service stop")
        cleared = clear()
        time.sleep(1.0)  # it has come in, while the arm is still stopping
        arm.goes_on.set()
        cell.listener.until(lambda: stopped.done() and cleared.done())
        assert stopped.result().success
        assert cleared.result().success
        cell.until_mode("hold")
    finally:
        arm.goes_on.set()
        cell.close()


class FailingNode(SimArmNode):
    """An arm's node with an error in it."""

    def on_deactivate(self, state):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("kind", "driver", "mode"),
    [
        (SimArmNode, "arm_cell.UnholdableArm", "hold: deactivated"),
        (FailingNode, "drivers.arm.sim.SimArm", "hold: the arm is not connected"),
    ],
)
def test_a_deactivation_that_fails_leaves_nothing_that_moves_the_arm(kind, driver, mode, opened):
    namespace = f"/left_{kind.__name__.lower()}_{os.getpid()}"
    cell = opened(ArmCell(namespace, {**sim_arm(), "_target_": driver}, kind=kind))
    change = asker(cell, ChangeState, "arm/change_state")
    cell.stream(ahead(1.0), 60.0, until=cell.following)
    arm = cell.running.node.driver
    answer(cell, change(transition=DEACTIVATE))
    cell.until_mode(mode)
    applied = len(cell.applied)
    cell.stream(ahead(1.0), 0.5)
    assert len(cell.applied) == applied
    assert cell.mode() == mode
    assert cell.facts()  # the node goes on
    if kind is FailingNode:
        with pytest.raises(DriverError, match="not connected"):
            arm.read()
        for transition in (CONFIGURE, ACTIVATE):
            assert answer(cell, change(transition=transition)).success
        cell.stream(lambda _: cell.pose(), 60.0, until=cell.following)
        cell.stream(lambda _: cell.pose(), 0.5)
        assert cell.count("publishers") == 0  # each command came in once


def test_a_collision_reflex_is_reported_and_never_cleared_by_itself(opened):
    cell = opened(ArmCell(f"/reflex_{os.getpid()}", sim_arm(reflex_force=10.0)))
    below = np.array([0, 0, 0.02, 0, 0, 0, 0])
    stopped = lambda: cell.mode().startswith("stopped")  # noqa: E731
    cell.stream(lambda _: cell.pose() - below, 60.0, until=stopped)
    before = cell.count("stopped")
    cell.stream(lambda _: HOME, 60.0, until=lambda: cell.count("stopped") > before + 3)
    assert "collision reflex" in cell.mode()
    assert cell.listener.reported("collision reflex")["mode"] == "stopped"
    assert cell.listener.trigger("clear_errors")[0]
    cell.until_mode("hold")


def test_measurements_of_another_time_hold_the_arm_and_say_so(opened):
    cell = opened(ArmCell(f"/late_{os.getpid()}", {**sim_arm(), "_target_": "arm_cell.MisreadArm"}))
    arm = cell.running.node.driver
    start, before = cell.pose(), arm.true_position()
    modes = cell.listener.hear("mode", String, qos.latched(10))
    arm.late_ns = 8 * 10**9
    said = "not stamped with this machine's time; got: 8."
    cell.stream(lambda _: start, 60.0, until=lambda: said in cell.mode())
    time.sleep(0.7)  # the age is another one at every poll, which is no news
    assert sum(said[:20] in mode.data for mode in modes) <= 3
    assert np.linalg.norm(arm.true_position() - before) < 0.002
