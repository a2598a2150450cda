"""What an operator says through ROS services reaches the loop that moves the robot."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener
from std_msgs.msg import String
from test_ros_robot import FAR, SCRIPTED, arm_node, configuration, until_begun

from robot_rl.env.factory import make_env, make_inbox, make_intervention
from robot_rl.env.intervention import Intervention
from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros import qos

NAMESPACE = "/served"


@pytest.fixture(scope="module")
def operated():
    """An environment with an operator, and the node of its arm."""
    config = configuration(NAMESPACE)
    arm, listener = arm_node(config), Listener(NAMESPACE)
    env = make_intervention(config, make_env(config), make_inbox(config))
    yield env, listener
    env.close()
    listener.close()
    arm.close()


def step(env):
    *_, truncated, info = env.step(np.zeros(len(env.schema.action_names), np.float32))
    return truncated, info


@pytest.mark.parametrize("said", ["success", "failure", "take_over", "hand_back", "resume"])
def test_what_a_service_is_told_is_in_the_info_of_the_next_step(operated, said):
    env, listener = operated
    env.reset(seed=1)
    assert listener.trigger(said) == (True, f"the loop was told: {said}")
    truncated, info = step(env)
    assert info["operator"].events == (said,)
    assert info["intervened"] == (said == "take_over")
    assert not truncated


@pytest.mark.parametrize(
    ("said", "afterwards"), [("pause", "resume"), ("episode/reset", None), ("discard", None)]
)
def test_services_end_the_episode_with_the_robot_holding(operated, said, afterwards):
    env, listener = operated
    env.reset(seed=1)
    listener.trigger(said)
    truncated, info = step(env)
    assert truncated
    assert not info["intervened"]
    assert set(env.waits_for) == ({afterwards} - {None})
    if afterwards is not None:
        listener.trigger(afterwards)
        env.hear()
        assert not env.waits_for


def test_an_arm_that_is_stopped_ends_the_episode_and_nothing_goes_on_before_it_is_cleared(operated):
    env, listener = operated
    env.reset(seed=1)
    listener.trigger("stop")
    deadline = time.monotonic() + 30.0
    while not (truncated := step(env)[0]):
        assert time.monotonic() < deadline
    assert truncated
    assert set(env.waits_for) == {"clear_errors"}
    listener.trigger("clear_errors")
    env.wait_until_free(lambda: time.monotonic() > deadline, lambda text: None)
    assert not env.waits_for
    env.reset(seed=1)
    assert not step(env)[0]


class Resetting:
    """An arm that moves to each episode's start by itself, slowly, and an operator's inbox."""

    def __init__(self, namespace, attendants=(), scripted=SCRIPTED):
        config = configuration(namespace, *scripted)
        self.arm = arm_node(config, FAR)
        self.listener = Listener(namespace)
        self.modes = self.listener.hear("mode", String, qos.latched())
        self.inbox = make_inbox(config)
        env = make_env(config)
        self.env = Intervention(env, self.inbox, 0.5, attendants)
        env.robot.serve_operator(self.inbox, self.env.attend)

    def mode(self):
        return self.modes[-1].data if self.modes else ""

    def pose(self):
        robot = self.env.robot
        robot.measurements.wait_until_fresh()
        return robot.tcp_pose()

    def when(self, words, act):
        """Act from another thread as soon as the arm's mode begins with these words."""

        def wait_and_act():
            self.listener.until(lambda: self.mode().startswith(words))
            act()

        thread = threading.Thread(target=wait_and_act)
        thread.start()
        return thread

    def stays(self, seconds=1.0):
        before = self.pose()
        time.sleep(seconds)
        return np.abs(self.pose()[:3] - before[:3]).max() < 0.003

    def close(self):
        self.env.close()
        self.listener.close()
        self.arm.close()


class KeyPressed:
    """Stands in for a keyboard: it is heard when the loop reads it."""

    def __init__(self):
        self.inbox = None
        self.said = []

    def begin(self, seed):
        pass

    def listen(self, observation):
        while self.said:
            self.inbox.post(self.said.pop())

    watch = listen

    def close(self):
        pass


@pytest.mark.parametrize(("source", "motion"), [("console", "reset"), ("keyboard", "follow")])
def test_a_stop_during_a_reset_stops_the_arm_and_only_a_person_lets_it_move(source, motion):
    key = KeyPressed()
    cell = Resetting(f"/stopped_{source}_{motion}", [key])
    key.inbox = cell.inbox
    say = cell.inbox.post if source == "console" else key.said.append
    try:
        thread = cell.when(motion, lambda: say("stop"))
        with pytest.raises(RobotInterrupted, match="the operator has halted the robot"):
            cell.env.reset(seed=1)
        thread.join()
        cell.listener.until(lambda: cell.mode().startswith("stopped"))
        for _ in range(3):  # as the loop does: it tries again and again
            with pytest.raises(RobotInterrupted, match="clear_errors"):
                cell.env.reset(seed=1)
        assert cell.stays()
        say("clear_errors")
        cell.env.overhear()
        cell.listener.until(lambda: cell.mode().startswith("hold"))
        assert cell.stays()
        assert not cell.env.waits_for
        cell.env.reset(seed=1)
        assert not step(cell.env)[0]
    finally:
        cell.close()


def test_a_stop_reaches_an_arm_whose_node_is_just_being_started_again():
    config = configuration("/restarted")
    env, listener = make_env(config), Listener("/restarted")
    modes = listener.hear("mode", String, qos.latched())
    inbox = make_inbox(config)
    arm = arm_node(config)
    try:
        env.robot.serve_operator(inbox, lambda: None)
        until_begun(env, seed=1)
        arm.close()
        inbox.post("stop")
        inbox.post("clear_errors")  # the person has thought better of it
        arm = arm_node(config)
        until_begun(env, seed=1)
        assert not any(mode.data.startswith("stopped") for mode in modes)

        arm.close()
        inbox.post("stop")
        inbox.poll()
        arm = arm_node(config)
        listener.until(lambda: "stop" in inbox.poll().events)  # the arm's own word, to the loop
        inbox.post("clear_errors")
        listener.until(lambda: modes[-1].data.startswith("hold"))
    finally:
        env.close()
        listener.close()
        arm.close()


def test_an_arm_that_does_not_come_to_its_start_waits_for_a_person():
    exact = [word.replace("turn_tolerance:0.1", "turn_tolerance:1.0e-9") for word in SCRIPTED]
    cell = Resetting("/lost", scripted=exact)
    try:
        with pytest.raises(RobotInterrupted, match=r"look at the robot; got: the arm does not"):
            cell.env.reset(seed=1)
        with pytest.raises(RobotInterrupted, match="look at the robot; next: to go on say start"):
            cell.env.reset(seed=1)
        assert cell.stays()
        cell.env.robot._episodes._tolerances = (0.1, 0.1)  # the person has mended it
        cell.inbox.post("start")
        cell.env.reset(seed=1)
    finally:
        cell.close()


def test_an_episode_whose_goal_is_reached_before_it_begins_waits_for_a_person():
    anywhere = [f"task.environment.{name}=9.0" for name in ("tolerance", "angle_tolerance")]
    config = configuration("/reached", *anywhere)
    arm = arm_node(config)
    env = make_intervention(config, make_env(config), make_inbox(config))
    try:
        with pytest.raises(RobotInterrupted, match=r"goal is reached before.*put the scene back"):
            env.reset(seed=1)
        assert set(env.waits_for) == {"start"}
    finally:
        env.close()
        arm.close()
