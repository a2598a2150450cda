"""LeRobot's own SO-101 classes, with simulated servos on a serial line, behind our drivers."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

pytest.importorskip("lerobot.robots", reason="needs the extra lerobot-arms")
pytest.importorskip("scservo_sdk", reason="needs lerobot[feetech]")

from feetech_servos import OFFSET, TORQUE, Bus, Servo

from drivers.arm.lerobot import LeRobotArm
from drivers.base import DriverError, DriverFault, DriverTimeout
from drivers.gripper.base import Fingers
from drivers.teleop.leader import LeRobotLeader
from robot_rl.processes.waiting import wait_until

pytestmark = pytest.mark.slow  # LeRobot alone takes seconds to load

MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
JOINTS = MOTORS[:-1]
LOW, HIGH, MIDDLE = 1000, 3000, 2000
COUNT = 2.0 * math.pi / 4095  # of a servo [rad], as LeRobot counts


@pytest.fixture
def so101(tmp_path, opened):
    """Servos in the middle of their ranges, the settings of who is there, and a calibration."""
    bus = opened(Bus({number: Servo(MIDDLE, LOW, HIGH) for number in range(1, 7)}))
    calibration = {
        name: {"id": n, "drive_mode": 0, "homing_offset": 0, "range_min": LOW, "range_max": HIGH}
        for n, name in enumerate(MOTORS, 1)
    }
    (tmp_path / "arm.json").write_text(json.dumps(calibration))
    return bus, {"port": bus.port, "id": "arm", "calibration_dir": str(tmp_path)}


class PatientArm(LeRobotArm):
    """The servos here are a thread of a busy machine, and late by chance."""

    def read(self):
        for _ in range(20):
            try:
                return super().read()
            except DriverTimeout:
                time.sleep(0.1)
        return super().read()


def follower(settings, **changed):
    given = {
        "type": "so101_follower",
        "joint_names": JOINTS,
        "joint_low": [-1.5] * 5,
        "joint_high": [1.5] * 5,
        "settings": {"disable_torque_on_disconnect": False, **settings},
    }
    return PatientArm(**{**given, **changed})


def test_an_so101_is_measured_and_moved_in_radians_with_its_gripper(so101, connected):
    bus, settings = so101
    bus.servos[1].position = MIDDLE + 500.0
    arm = connected(follower(settings))
    state = arm.read()
    np.testing.assert_allclose(state.joint_positions, [500 * COUNT, 0, 0, 0, 0], atol=2 * COUNT)
    assert np.isnan(state.tcp_pose).all()
    assert arm.gripper_position == pytest.approx(0.5)
    assert bus.servos[1].position == MIDDLE + 500.0  # nothing moves when it is connected

    target = np.array([0.3, -0.2, 0.1, 0.4, -0.5])
    arm.grip(1.0)
    arm.command_joints(target)
    arrived = lambda: np.abs(arm.read().joint_positions - target).max() < 0.01  # noqa: E731
    assert wait_until(arrived, 10.0)
    assert wait_until(lambda: arm.read() is not None and arm.gripper_position > 0.99, 10.0)
    assert bus.servos[2].position == pytest.approx(MIDDLE - 0.2 / COUNT, abs=2)
    assert bus.servos[6].position == pytest.approx(LOW, abs=2)
    assert wait_until(lambda: np.abs(arm.read().joint_velocities).max() < 0.02, 10.0)

    arm.stop()
    with pytest.raises(DriverFault, match="does not move"):
        arm.command_joints(np.zeros(5))
    time.sleep(0.3)
    assert arrived()
    arm.clear_errors()
    arm.command_joints(np.zeros(5))
    assert wait_until(lambda: np.abs(arm.read().joint_positions).max() < 0.01, 10.0)
    arm.close()
    assert bus.servos[1].memory[TORQUE] == 1  # it does not fall


def test_an_arm_that_falls_silent_is_late_and_comes_back(so101, connected):
    bus, settings = so101
    arm = connected(follower(settings))
    bus.silent = True
    with pytest.raises(DriverTimeout, match="does not measure its motors"):
        arm.read()
    bus.silent = False
    arm.close()
    arm.connect()
    assert np.abs(arm.read().joint_positions).max() < 0.01


@pytest.mark.parametrize(
    ("settings", "changed", "words"),
    [
        ({"use_degrees": False}, {}, "as a share of its range"),
        ({}, {"fingers": None}, "other motors than it is configured with"),
        ({}, {"type": "so102_follower"}, "did you mean .*so10[01]_follower"),
        ({"speed": 3}, {}, "refuses the settings.*speed"),
        ({"port": "/dev/nothing"}, {}, "does not reach"),
        ({}, {"units": "turns"}, "degrees or radians"),
    ],
)
def test_what_cannot_be_driven_is_refused_with_a_sentence(so101, settings, changed, words):
    arm = follower({**so101[1], **settings}, **changed)
    with pytest.raises(DriverError, match=words):
        arm.connect()
    with pytest.raises(DriverError, match="not connected"):
        arm.read()


def test_an_arm_without_its_calibration_is_refused_with_the_command_that_calibrates(so101):
    bus, settings = so101
    bus.servos[3].put(OFFSET, 7)
    with pytest.raises(DriverError, match=r"lerobot-calibrate --robot\.type=so101_follower"):
        follower(settings).connect()


def test_cameras_and_limits_of_other_joints_are_refused_before_anything_is_touched():
    with pytest.raises(DriverError, match=r"hardware/cameras\.md"):
        follower({"cameras": {"front": {"type": "opencv"}}})
    with pytest.raises(DriverError, match="joint_high of the LeRobot arm"):
        follower({}, joint_high=[1.0])


def test_an_so101_leader_is_read_in_radians_and_is_lost_when_it_is_silent(so101, connected):
    bus, settings = so101
    leader = connected(LeRobotLeader(JOINTS, type="so101_leader", settings=settings))
    joints, grip = leader.positions()
    np.testing.assert_allclose(joints, np.zeros(5), atol=2 * COUNT)
    assert grip == pytest.approx(0.5)
    assert bus.servos[1].memory[TORQUE] == 0  # a hand can move it
    bus.servos[4].position += 100.0
    assert wait_until(lambda: abs(leader.positions()[0][3] - 100 * COUNT) < 2 * COUNT, 5.0)
    bus.silent = True
    time.sleep(0.5)
    with pytest.raises(DriverError, match="so101_leader is too old"):
        leader.positions()


def test_positions_of_a_gripper_are_shares_whichever_way_it_opens():
    fingers = Fingers(open_at=-10.0, closed_at=30.0)
    assert [fingers.share(p) for p in (-20.0, -10.0, 10.0, 30.0, 50.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert fingers.position(0.25) == 0.0
    with pytest.raises(DriverError):
        Fingers(open_at=1.0, closed_at=1.0)
