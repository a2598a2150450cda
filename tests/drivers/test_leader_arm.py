"""When a robot follows a leader arm, and when it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from drivers.base import DriverError
from drivers.teleop.leader import LeaderArm
from robot_rl.env.factory import LeaderInput
from robot_rl.env.operator import OperatorError, OperatorInbox
from robot_rl.env.robot import RobotInterrupted

STEPS = np.array([0.05, 0.1, 0.05])
COLUMNS = tuple(f"j{n}.delta" for n in range(3))


@dataclass
class HandMovedLeader(LeaderArm):
    """A leader that a test moves."""

    at: np.ndarray = field(default_factory=lambda: np.zeros(3))
    grip: float | None = None
    gone: bool = False

    def connect(self):
        pass

    def positions(self):
        if self.gone:
            raise DriverError("the cable is out")
        return self.at, self.grip

    def close(self):
        pass


class Follower:
    """A robot that goes where the actions lead, and the inbox of its loop."""

    def __init__(self, joints, **settings):
        self.leader = HandMovedLeader(["j0", "j1", "j2"], **settings)
        self.inbox = OperatorInbox()
        self.inbox.joints = self.inbox.unmovable = COLUMNS
        self.input = LeaderInput(self.leader, self.inbox, STEPS)
        self.joints = np.array(joints, np.float64)
        self.told = None

    def step(self, leader=None):
        """One step of the loop, after the leader was moved; whether it moves the robot."""
        if leader is not None:
            self.leader.at = np.array(leader, np.float64)
        observed = {"state/joint_positions": self.joints, "state/joint_lead": np.zeros(3)}
        self.input.watch({n: v.astype(np.float32) for n, v in observed.items()})
        said = self.inbox.poll()
        before = self.joints.copy()
        self.joints = self.joints + STEPS * said.motion
        assert (np.abs(self.joints - before) <= STEPS + 1e-9).all()
        self.told = said.gripper
        return said.moving


def test_a_leader_far_away_moves_nothing_however_it_is_moved():
    robot = Follower([0.0, 0.0, 0.0])
    for shift in np.linspace(0.0, 0.3, 10):
        assert not robot.step([0.1, 0.9 - shift, 0.0])
    assert "bring the leader to the robot: j1 is +0.60 rad away" in robot.inbox.advice
    np.testing.assert_array_equal(robot.joints, np.zeros(3))


def test_a_leader_at_rest_moves_nothing_however_near_it_is():
    robot = Follower([0.0, 0.0, 0.0])
    for _ in range(10):
        assert not robot.step([0.1, 0.1, 0.1])
    np.testing.assert_array_equal(robot.joints, np.zeros(3))


def test_the_robot_goes_to_a_leader_that_is_near_and_moved_and_follows_it():
    robot = Follower([0.0, 0.0, 0.0])
    robot.step([0.1, 0.1, 0.1])
    assert robot.step([0.15, 0.1, 0.1])
    for _ in range(5):
        robot.step()
    np.testing.assert_allclose(robot.joints, [0.15, 0.1, 0.1], atol=1e-6)
    for shift in np.linspace(0.0, 0.4, 10):
        assert robot.step([0.15 - shift, 0.1, 0.1])
    for _ in range(5):
        robot.step()
    np.testing.assert_allclose(robot.joints, [-0.25, 0.1, 0.1], atol=1e-6)


def test_a_leader_that_rests_lets_the_policy_act_again():
    robot = Follower([0.0, 0.0, 0.0], rest_s=0.05)
    robot.step([0.0, 0.0, 0.0])
    assert robot.step([0.05, 0.0, 0.0])
    deadline = robot.leader._moved_at + 0.06
    while time.monotonic() < deadline:
        robot.step()
    assert not robot.step()
    robot.joints += 0.1  # the policy moves the robot
    assert not robot.step()


def test_a_leader_that_falls_is_let_go_of():
    robot = Follower([0.0, 0.0, 0.0])
    robot.step([0.0, 0.0, 0.0])
    assert robot.step([0.05, 0.0, 0.0])
    assert not robot.step([0.05, -1.5, 0.0])
    before = robot.joints.copy()
    assert not robot.step([0.05, -1.6, 0.0])
    np.testing.assert_array_equal(robot.joints, before)


def test_an_episode_begins_without_a_leader_that_was_followed_before():
    robot = Follower([0.0, 0.0, 0.0])
    robot.step([0.0, 0.0, 0.0])
    assert robot.step([0.1, 0.0, 0.0])
    robot.input.begin(0)
    assert not robot.inbox.poll().moving
    assert not robot.step()


def test_the_gripper_is_told_nothing_before_the_leaders_is_moved():
    robot = Follower([0.0, 0.0, 0.0])
    robot.leader.grip = 1.0
    robot.step([0.0, 0.0, 0.0])
    robot.step([0.05, 0.0, 0.0])
    assert robot.told is None
    robot.leader.grip = 0.5
    robot.step([0.1, 0.0, 0.0])
    assert robot.told == 0.0


def test_signs_and_offsets_turn_a_leaders_joints_into_the_robots():
    robot = Follower([0.0, 0.0, 0.0], signs=[-1.0, 1.0, 1.0], offsets=[0.0, 1.57, 0.0])
    robot.step([0.0, -1.57, 0.0])
    assert robot.step([-0.05, -1.57, 0.0])
    robot.step()
    np.testing.assert_allclose(robot.joints, [0.05, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("broken", ["gone", "nan"])
def test_a_leader_that_fails_holds_the_robot(broken):
    robot = Follower([0.0, 0.0, 0.0])
    robot.step([0.0, 0.0, 0.0])
    assert robot.step([0.1, 0.0, 0.0])
    robot.leader.gone = broken == "gone"
    with pytest.raises(RobotInterrupted, match="the operator's device is gone"):
        robot.step([0.1, np.nan, 0.0] if broken == "nan" else None)
    assert not robot.inbox.poll().moving


def test_no_device_moves_joints_by_a_motion_of_the_tool_nor_a_leader_another_robot():
    robot = Follower([0.0, 0.0, 0.0])
    with pytest.raises(OperatorError, match="cannot move this robot"):
        robot.inbox.jog([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], source="console")
    with pytest.raises(OperatorError, match=r"expected: 3 numbers .*: j0\.delta"):
        robot.inbox.lead(np.zeros(6))
    with pytest.raises(OperatorError):
        robot.inbox.lead([np.nan, 0.0, 0.0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"signs": [1.0]}, "signs of the leader arm"),
        ({"engage_within": 0.0}, "engage_within"),
        ({"let_go_beyond": 0.1}, "let_go_beyond"),
    ],
)
def test_settings_of_a_leader_that_cannot_be_are_refused(settings, words):
    with pytest.raises(DriverError, match=words):
        HandMovedLeader(["j0", "j1", "j2"], **settings)
