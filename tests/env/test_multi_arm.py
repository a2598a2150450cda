"""Several arms that are one robot, in one process."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import environment

from robot_rl.env.controllers import IdleController
from robot_rl.env.multi_arm import MultiArm, MultiArmTask
from robot_rl.env.operator import OperatorError, OperatorInbox
from robot_rl.env.reset import NoReset
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.session import Session
from robot_rl.errors import RobotRLError

ARMS = ("left", "right")


def two_arms(task):
    """Two simulated arms, each in a world of its own."""
    alone = {arm: environment(task) for arm in ARMS}
    tasks = MultiArmTask(task, {arm: env.task for arm, env in alone.items()})
    robot = MultiArm({arm: env.robot for arm, env in alone.items()}, tasks)
    return RobotEnv(robot, tasks, alone["left"].clock)


@pytest.fixture
def inbox():
    return OperatorInbox(float("inf"))


@pytest.fixture
def holding(inbox):
    """The left arm has closed its gripper, the right one has opened its own half."""
    operated = Session(two_arms("pick_cube"), inbox)
    operated.reset(seed=1)
    action = np.zeros(14, np.float32)
    action[[6, 13]] = 1.0, -0.5
    operated.step(action)
    return operated


@pytest.mark.parametrize("event", ["stop", "pause", "reset", "discard", "take_over"])
def test_each_arm_keeps_what_it_holds_when_the_operator_halts_both_or_takes_over(
    holding, inbox, event
):
    assert [holding.schema.action_names[column] for column in (6, 13)] == [
        "left/gripper",
        "right/gripper",
    ]
    inbox.post(event)
    info = holding.step(np.zeros(14, np.float32))[-1]
    expected = np.zeros(14, np.float32)
    expected[[6, 13]] = 1.0, -0.5
    np.testing.assert_array_equal(info["executed_action"], expected)


def test_both_grippers_are_open_again_after_a_reset(holding, inbox):
    holding.reset(seed=2)
    inbox.post("stop")
    info = holding.step(np.zeros(14, np.float32))[-1]
    np.testing.assert_array_equal(info["executed_action"][[6, 13]], [-1.0, -1.0])


def test_an_idle_controller_leaves_each_gripper_as_it_was_left(holding):
    controller = IdleController(holding.schema.action_names)

    def idle(observation):
        return controller.act({name: value[None] for name, value in observation.items()}).action[0]

    assert idle(holding.env.observe())[[6, 13]].tolist() == [1.0, -0.5]
    assert idle(holding.reset(seed=2)[0])[[6, 13]].tolist() == [-1.0, -1.0]


def test_without_a_reset_both_arms_stay_where_they_are(inbox):
    env = Session(two_arms("reach"), inbox, reset=NoReset())
    first, _ = env.reset(seed=1)
    for _ in range(5):
        last, *_ = env.step(np.full(12, 0.5, np.float32))
    second, _ = env.reset(seed=2)
    for arm in ARMS:
        pose, goal = f"state/{arm}/tcp_pose", f"state/{arm}/object_poses"
        np.testing.assert_array_equal(second[pose], last[pose])
        assert (second[goal] != first[goal]).any()


def test_arms_whose_task_needs_its_scene_put_back_say_so(inbox):
    env = Session(two_arms("pick_cube"), inbox, reset=NoReset())
    env.reset(seed=1)
    with pytest.raises(RobotRLError, match="reset=scripted"):
        env.reset(seed=2)


def test_who_would_jog_two_arms_at_once_is_refused_and_the_arms_go_on(holding, inbox):
    with pytest.raises(OperatorError, match="left/x"):
        inbox.jog((0.0, 0.0, 1.0, 0.0, 0.0, 0.0))
    inbox.post("take_over")
    *_, truncated, info = holding.step(np.zeros(14, np.float32))
    assert info["intervened"]
    assert not truncated
