"""What an operator says through ROS services reaches the loop that moves the robot."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener
from omegaconf import OmegaConf
from rich.console import Console
from ros_cell import FAR, NEAR, SCRIPTED, arm_node, configuration, until_begun
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from robot_rl.config import Settings
from robot_rl.env.factory import make_env, make_inbox, make_session
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.session import Session
from robot_rl.learning.stages.collect import TeleoperatedSession
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.ros import qos
from robot_rl.ros.conversions import joint_state_message
from robot_rl.run import RunDirectory

NAMESPACE = "/served"


@pytest.fixture(scope="module")
def operated():
    """An environment with an operator, and the node of its arm."""
    config = configuration(NAMESPACE)
    arm, listener = arm_node(config), Listener(NAMESPACE)
    env = make_session(config)
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
    assert listener.trigger(said) == (True, f"the loop heard: {said}")
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
    assert set(env.operator.waits_for) == ({afterwards} - {None})
    if afterwards is not None:
        listener.trigger(afterwards)
        env.operator.hear()
        assert not env.operator.waits_for


def test_an_arm_that_is_stopped_ends_the_episode_and_nothing_goes_on_before_it_is_cleared(operated):
    env, listener = operated
    env.reset(seed=1)
    listener.trigger("stop")
    deadline = time.monotonic() + 30.0
    while not (truncated := step(env)[0]):
        assert time.monotonic() < deadline
    assert truncated
    assert set(env.operator.waits_for) == {"clear_errors"}
    listener.trigger("clear_errors")
    env.wait_until_free(lambda: time.monotonic() > deadline, lambda text: None)
    assert not env.operator.waits_for
    env.reset(seed=1)
    assert not step(env)[0]


class Resetting:
    """An arm that moves to each episode's start by itself, slowly, and an operator's inbox."""

    def __init__(
        self, namespace, devices=(), scripted=SCRIPTED, real=False, reset=NEAR, **parameters
    ):
        config = configuration(namespace, *scripted)
        if real:  # the same nodes, of which nobody says that they are a simulation
            config.robot.mirror = None
        self.parameters = {**reset, **parameters}
        self.config, self.arm = config, arm_node(config, self.parameters)
        self.listener = Listener(namespace)
        self.modes = self.listener.hear("mode", String, qos.latched())
        self.inbox = make_inbox(config)
        self.env = Session(make_env(config), self.inbox, devices=devices)

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

    def waits(self):
        """The words of a loop that may not begin, of which nothing moves."""
        before = self.pose()
        for _ in range(3):  # as the loop does: it tries again and again
            with pytest.raises(RobotInterrupted) as waiting:
                self.env.reset(seed=1)
        time.sleep(0.5)
        assert np.abs(self.pose()[:3] - before[:3]).max() < 0.003
        return str(waiting.value)

    def stays(self):
        before = self.pose()
        time.sleep(0.5)
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


@pytest.mark.parametrize(
    ("source", "motion"),
    [("console", "reset"), pytest.param("keyboard", "follow", marks=pytest.mark.slow)],
)
def test_a_stop_during_a_reset_stops_the_arm_and_only_a_person_lets_it_move(source, motion, opened):
    key = KeyPressed()
    cell = opened(Resetting(f"/stopped_{source}_{motion}", [key], reset=FAR))
    key.inbox = cell.inbox
    say = cell.inbox.post if source == "console" else key.said.append
    thread = cell.when(motion, lambda: say("stop"))
    with pytest.raises(RobotInterrupted, match=r"(is|has) stopped"):
        cell.env.reset(seed=1)
    thread.join()
    cell.listener.until(lambda: cell.mode().startswith("stopped"))
    for _ in range(3):  # as the loop does: it tries again and again
        with pytest.raises(RobotInterrupted, match="clear_errors"):
            cell.env.reset(seed=1)
    assert cell.stays()
    say("clear_errors")
    cell.env.operator.overhear()
    cell.listener.until(lambda: cell.mode().startswith("hold"))
    assert cell.stays()
    assert not cell.env.operator.waits_for
    cell.env.reset(seed=1)
    assert not step(cell.env)[0]


@pytest.mark.slow  # the reset takes long, and the gripper's limit is large for a busy machine
def test_a_reset_of_the_arms_node_ends_when_a_gripper_falls_silent():
    words = (*SCRIPTED, "robot.gripper=true", "robot.sensors.gripper_s=1.0")
    slow = {**FAR, "reset.speed_translation": 0.02}
    cell = Resetting("/silent_gripper", scripted=words, reset=slow)
    node, silent = cell.listener.client.node, threading.Event()
    states = node.create_publisher(JointState, "gripper/state", qos.sensor_publisher(50.0))

    def publish():
        while not silent.wait(0.02):
            states.publish(joint_state_message(["gripper"], [0.0], None, time.time_ns()))

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        thread = cell.when("reset", silent.set)
        with pytest.raises(RobotInterrupted, match="/silent_gripper/gripper/state is too old"):
            cell.env.reset(seed=1)
        cell.listener.until(lambda: cell.mode().startswith("hold: the client fell"))
        thread.join()
        held = cell.env.robot.tcp_pose()
        time.sleep(0.5)
        np.testing.assert_allclose(cell.env.robot.tcp_pose(), held, atol=0.003)
    finally:
        silent.set()
        publishing.join()
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


def test_an_arm_moves_after_a_fault_when_a_person_says_start_and_not_before(opened):
    cell = opened(Resetting("/faulty", real=True))
    assert "this process has not moved it yet; next: to go on say start" in cell.waits()
    cell.inbox.post("start")
    until_begun(cell.env, seed=1)

    cell.arm.close()
    for sensor in cell.env.robot.all_sensors:
        sensor.limit_s = 0.3
    deadline = time.monotonic() + 30.0
    with pytest.raises(RobotInterrupted, match=r"too old|not measured just now"):  # noqa: PT012
        while time.monotonic() < deadline:
            step(cell.env)
    cell.listener.until(lambda: cell.env.operator.waiting().startswith("the robot is not there"))
    done, why = cell.listener.trigger("start")  # too early: what is missing is still missing
    assert not done
    assert "nothing can start yet; got: nobody publishes /faulty/joint_states" in why
    assert "next: say start once the robot is there" in why
    cell.inbox.post("start")  # as a key says it, which hears no answer
    with pytest.raises(RobotInterrupted, match="the robot is not there"):
        cell.env.reset(seed=1)

    cell.arm = arm_node(cell.config, cell.parameters)
    for sensor in cell.env.robot.all_sensors:
        sensor.limit_s = 3.0
    cell.listener.until(lambda: cell.mode().startswith("hold"))
    waiting = cell.waits()
    assert "too old" in waiting or "not measured just now" in waiting
    assert "to go on say start" in waiting
    cell.inbox.post("start")
    until_begun(cell.env, seed=1)
    assert not step(cell.env)[0]


def test_of_a_robot_that_is_not_there_nobody_is_first_asked_to_say_start(opened):
    config = configuration("/absent", "+robot.discovery_s=0.1")
    config.robot.mirror = None  # as of a real one
    config.start_nodes = True
    env = make_session(config)
    starting = "the robot's nodes are starting; next: wait. Then to go on"
    assert env.operator.waiting().startswith(starting)
    env.close()
    config.start_nodes = False
    env = opened(make_session(config))
    waiting = env.operator.waiting()
    assert waiting.startswith("the robot is not there; got: nobody publishes /absent/joint_st")
    assert "nobody serves /absent/stop; next: bring back what is missing" in waiting
    assert waiting.index("docs/topics.md") < waiting.index("say start")
    opened(arm_node(config))
    listener = opened(Listener("/absent"))
    listener.until(lambda: env.operator.waiting().startswith("a person has to look at the robot"))


def test_an_arm_that_was_stopped_and_cleared_moves_when_a_person_says_start(opened):
    cell = opened(Resetting("/cleared", real=True))
    cell.inbox.post("start")
    until_begun(cell.env, seed=1)
    cell.listener.trigger("stop")
    deadline = time.monotonic() + 30.0
    while not step(cell.env)[0]:
        assert time.monotonic() < deadline
    done, why = cell.listener.trigger("start")  # not yet
    assert not done
    assert "the service stop was called; next: say clear_errors, then start" in why
    cell.listener.trigger("clear_errors")
    cell.listener.until(lambda: "clear_errors" in cell.env.operator.overhear().events)
    assert "before it was cleared: the arm is stopped" in (waiting := cell.waits())
    assert "the service stop was called; next: to go on say start" in waiting
    cell.listener.trigger("start")
    until_begun(cell.env, seed=1)


def test_a_reset_that_failed_is_the_reason_and_not_an_operator(opened):
    short = {"reset.patience_s": 0.3, "reset.pause_s": 0.2}
    cell = opened(Resetting("/obstructed", **{"reset.tolerance_translation": 0.0005}, **short))
    with pytest.raises(RobotInterrupted, match="the reset failed twice, at last: the arm"):
        cell.env.reset(seed=1)
    waiting = cell.waits()
    assert "the reset failed twice" in waiting
    assert "to go on say clear_errors" in waiting
    assert waiting.count("next: ") == 1
    assert "the operator" not in waiting


def test_who_collects_by_hand_is_told_of_a_stop_that_was_kept(tmp_path, opened):
    namespace = "/kept"
    config = configuration(namespace)
    opened(arm_node(config))
    listener = opened(Listener(namespace))
    noted = io.StringIO()
    OmegaConf.set_struct(config, False)
    config.runs_directory = str(tmp_path)
    config.recording.countdown_s = 0.0
    config.teleop.device = {
        "_target_": "scripted_device.ScriptedDevice",
        "script": [],
        "events": {},
    }
    assert listener.trigger("stop")[0]
    progress = WorkProgress(1, console=Console(file=noted, width=200))
    run = RunDirectory.create("reach", str(tmp_path))
    session = TeleoperatedSession(Settings.of(config), run, progress)
    thread = threading.Thread(target=session.wait_for_start, args=(1,))
    thread.start()
    listener.until(lambda: "kept/mode: the service stop was called" in noted.getvalue())
    assert "next: to go on say clear_errors" in noted.getvalue()
    assert thread.is_alive()
    listener.trigger("clear_errors")
    listener.until(lambda: "episode 1: say start" in noted.getvalue())
    listener.trigger("start")
    thread.join()
    session.close()


def test_an_arm_that_does_not_come_to_its_start_waits_for_a_person(opened):
    close = "turn_tolerance:1.0e-9,settling_s:0.75"
    exact = [word.replace("turn_tolerance:0.1", close) for word in SCRIPTED]
    cell = opened(Resetting("/lost", scripted=exact))
    with pytest.raises(RobotInterrupted, match=r"look at the robot; got: the arm does not"):
        cell.env.reset(seed=1)
    with pytest.raises(RobotInterrupted, match=r"got: the arm does not.*to go on say start"):
        cell.env.reset(seed=1)
    assert cell.stays()
    easy = replace(cell.env.robot.episodes, tolerance=0.1, turn_tolerance=0.1)
    cell.env.robot.episodes = easy  # the person has fixed it
    cell.inbox.post("start")
    cell.env.reset(seed=1)


def test_an_episode_whose_goal_is_reached_before_it_begins_waits_for_a_person(opened):
    anywhere = [f"task.environment.{name}=9.0" for name in ("tolerance", "angle_tolerance")]
    config = configuration("/reached", *anywhere)
    opened(arm_node(config))
    env = opened(make_session(config))
    with pytest.raises(RobotInterrupted, match=r"goal is reached before.*put the scene back"):
        env.reset(seed=1)
    assert set(env.operator.waits_for) == {"start"}
