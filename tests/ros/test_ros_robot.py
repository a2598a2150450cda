"""The one environment on topics: a simulated arm's node in this process, in real time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from geometry_msgs.msg import PoseStamped
from listening import Listener, Running
from omegaconf import OmegaConf
from ros_cell import FAR, NEAR, SCRIPTED, arm_node, configuration, impatient, towards, until_begun
from std_msgs.msg import String

from drivers.gripper.node import GripperNode
from robot_rl.config import compose
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.robot_env import IN_PLACE
from robot_rl.env.rollout import rollout
from robot_rl.env.session import Session
from robot_rl.errors import RobotRLError
from robot_rl.ros import qos
from robot_rl.ros.faults import ArmStopped, CommandConflict, SensorLate, ServiceFailed
from robot_rl.ros.ros_client import RosClient


@pytest.fixture
def cell(request):
    """An environment and the nodes of its arm, in a namespace of the test's own."""
    config = configuration(f"/{request.node.name.split('[')[0]}")
    arms, env = [arm_node(config)], make_env(config)
    yield config, arms, env
    env.close()
    for arm in arms:
        arm.close()


def stay(env, steps=200):
    for _ in range(steps):
        env.step(np.zeros(6, np.float32))


def test_an_episode_over_topics_is_that_of_the_simulation(cell):
    _, _, env = cell
    simulated = make_env(compose(["task=reach"]))
    names = set(env.schema.observation_names)
    assert names == set(simulated.schema.observation_names) - {"state/gripper_position"}
    assert env.schema.action_names == simulated.schema.action_names

    here, there = env.reset(seed=3)[0], simulated.reset(seed=3)[0]
    for name in ("state/object_poses", "state/tcp_pose", "state/relative_pose"):
        np.testing.assert_allclose(here[name], there[name], atol=2e-3, err_msg=name)
    began = np.linalg.norm(here["state/relative_pose"][:3])
    truncated = False
    while not truncated and np.linalg.norm(here["state/relative_pose"][:3]) > 0.6 * began:
        here, _, _, truncated, info = env.step(towards(here))
        assert info["stamp_observation"] > info["stamp_action"]
    assert not truncated, "the arm has not come closer within the time limit"


def test_a_step_that_the_arms_node_limits_further_is_clamped(opened):
    config = configuration("/clamped")
    # Below the ceiling of the actions, and less tilt: episodes start within both, and leave them.
    tighter = {"workspace_high": [0.65, 0.20, 0.25], "max_tilt": 0.2, "command_deadline": 2.0}
    opened(arm_node(config, **tighter))
    env = opened(make_env(config))
    for column in (2, 3):
        env.reset(seed=3)
        action = np.zeros(6, np.float32)
        action[column] = 1.0
        clamped = [bool(env.step(action)[-1]["clamped"]) for _ in range(12)]
        assert not any(clamped[:3])
        assert any(clamped)


def test_a_scripted_expert_sees_the_simulated_world_through_topics(cell):
    config, _, env = cell
    controller = ExpertController(make_expert(config, env))
    recorder = RowBuilder(env.schema, SOURCE_DEMONSTRATION)
    result = next(rollout([Session(env)], controller, iter([5]), recorder=recorder))
    assert result.interrupted is None
    ways = [np.linalg.norm(row["state/relative_pose"][:3]) for row in result.rows]
    assert ways[-1] < 0.5 * ways[0]
    for row in result.rows:
        env.schema.pack(row)


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        pytest.param((), -1.0, id="simulated"),
        pytest.param(SCRIPTED, 1.0, id="scripted", marks=pytest.mark.slow),
    ],
)
def test_a_reset_that_tells_the_gripper_nothing_leaves_it_told_what_it_was(
    episodes, expected, opened
):
    config = configuration(f"/told{len(episodes)}", "task=pick_cube", *episodes)
    opened(arm_node(config, NEAR))
    env = opened(make_env(config))
    closing = np.zeros(7, np.float32)
    closing[6] = 1.0
    assert env.reset(seed=3)[0]["last_command"].tolist() == [0.0] * 6 + [-1.0]
    assert env.step(closing)[0]["last_command"].tolist() == closing.tolist()
    assert env.reset(seed=4)[0]["last_command"].tolist() == [0.0] * 6 + [expected]


@pytest.mark.slow
def test_a_gripper_that_a_process_finds_closed_opens_at_a_reset_alone_and_if_that_is_wanted(opened):
    config = configuration("/found", "task=pick_cube", "robot.gripper=true", *SCRIPTED)
    driver = OmegaConf.to_container(config.nodes.gripper.parameters.driver, resolve=True)
    opened(arm_node(config, NEAR))
    where = config.robot.namespace
    opened(Running(GripperNode, where, {**driver, "namespace": where}))
    closing = np.zeros(7, np.float32)
    closing[6] = 1.0
    env = make_env(config)
    try:
        env.reset(seed=3)
        before, closed = 0.0, 0.0
        while closed <= 0.9 or closed - before > 0.001:
            seen, _, _, truncated, _ = env.step(closing)
            before, closed = closed, seen["state/gripper_position"]
            assert not truncated, "the gripper has not closed within the time limit"
    finally:
        env.close()
    env = make_env(config)  # as a process that is started again has it
    try:
        staying = env.reset(seed=4)[0]["last_command"]
        assert staying[6] == pytest.approx(2.0 * closed - 1.0, abs=0.05)
        assert env.step(staying)[0]["state/gripper_position"] > 0.9
    finally:
        env.close()
    opening = [word.replace("}", ",opens_grippers:true}") for word in SCRIPTED]
    env = make_env(configuration("/found", "task=pick_cube", "robot.gripper=true", *opening))
    try:
        seen = env.reset(seed=4)[0]
        assert seen["last_command"][6] == -1.0
        assert seen["state/gripper_position"] < 0.1
    finally:
        env.close()


def test_a_silent_arm_is_named_and_its_episode_ends_with_the_last_good_observation(cell):
    config, arms, env = cell
    controller = ExpertController(make_expert(config, env))
    recorder = RowBuilder(env.schema, SOURCE_DEMONSTRATION)

    def die_after_three(row, result):
        rows.append(row)
        if row["episode_step"] == 3:
            arms.pop().close()
            for sensor in env.robot.all_sensors:
                sensor.limit_s = 0.4

    rows = []
    heard = {"recorder": recorder, "on_row": die_after_three}
    (result,) = rollout([Session(env)], controller, iter([5]), **heard)
    assert isinstance(result.interrupted, SensorLate)
    assert "/current_" in str(result.interrupted) or "/joint_states" in str(result.interrupted)
    assert [bool(row["is_last"]) for row in rows] == [False] * result.steps + [True]
    with pytest.raises(SensorLate):
        env.robot.apply(np.zeros(6, np.float32))
    with impatient(env, 0.5), pytest.raises(SensorLate, match="no message on"):
        env.reset(seed=6)

    arms.append(arm_node(config))
    for sensor in env.robot.all_sensors:
        sensor.limit_s = 3.0
    env.robot.wait_until_fresh()
    env.reset(seed=6)


def test_somebody_else_on_the_command_topic_is_named_and_nothing_starts(cell, opened):
    config, _, env = cell
    intruder = opened(RosClient("intruder", config.robot.namespace))
    publisher = intruder.node.create_publisher(
        PoseStamped, "target_pose", qos.command_publisher(10.0)
    )
    deadline = time.monotonic() + 20.0
    names: list[str] = []
    while "intruder" not in "".join(names) and time.monotonic() < deadline:
        found = env.robot.client.node.get_publishers_info_by_topic(publisher.topic_name)
        names = [info.node_name for info in found]
    with pytest.raises(CommandConflict, match="intruder"):
        env.reset(seed=1)


def test_an_episode_in_place_begins_after_an_interruption_and_is_watched_like_any_other(cell):
    _, _, env = cell
    still = np.zeros(6, np.float32)
    env.reset(seed=5)
    late = env.robot.measurements.success
    late.limit_s = 0.0
    with pytest.raises(SensorLate, match="task/success"):
        env.step(still)
    with pytest.raises(RobotInterrupted):
        env.reset(options=IN_PLACE)

    late.limit_s = 3.0
    env.reset(options=IN_PLACE)
    env.step(still)
    late.limit_s = 0.0  # commands do not look at this topic: who watches it must
    deadline = time.monotonic() + 20.0
    with pytest.raises(SensorLate, match="task/success"):  # noqa: PT012
        while time.monotonic() < deadline:
            env.robot.apply(still)
            time.sleep(0.02)


def test_an_episode_does_not_begin_in_place_where_its_goal_is_already_reached(cell):
    _, _, env = cell
    env.task.time_limit_steps = 300  # it comes slowly, so as to stay
    here, began = env.reset(seed=5)
    start = here["state/tcp_pose"]
    reached = 0  # steps for which it has stayed there
    while reached < 5:
        here, _, terminated, truncated, _ = env.step(0.3 * towards(here))
        assert not truncated, "the arm has not arrived within the time limit"
        reached = reached + 1 if terminated else 0
    here, info = env.reset(seed=5, options=IN_PLACE)
    assert (began["in_place"], info["in_place"]) == (False, False)
    np.testing.assert_allclose(here["state/tcp_pose"], start, atol=2e-3)
    assert not env.step(np.zeros(6, np.float32))[2]


def reset_despite_silence(env, seed):
    """A busy machine may leave the arm without a word for longer than its watchdog allows."""
    for _ in range(10):
        try:
            return env.reset(seed=seed)
        except ServiceFailed as problem:
            if "fell silent" not in str(problem):
                raise
    raise AssertionError("every reset was given up")


def test_a_stop_cuts_the_motion_to_the_start_and_clearing_it_does_not_take_it_up_again(opened):
    config = configuration("/cut", *SCRIPTED)
    opened(arm_node(config, FAR))
    env = opened(make_env(config))
    person, moving = opened(Listener("/cut")), threading.Event()

    def follow(message):
        if message.data.startswith("follow"):
            moving.set()

    def stop_and_clear():
        assert moving.wait(60.0)
        assert person.trigger("stop")[0]
        assert person.trigger("clear_errors")[0]

    person.client.node.create_subscription(String, "mode", follow, qos.latched())
    clearing = threading.Thread(target=stop_and_clear)
    clearing.start()
    with pytest.raises(ArmStopped, match=r"the arm (is|was) stopped"):
        reset_despite_silence(env, seed=1)
    clearing.join()
    before = env.robot.tcp_pose()
    time.sleep(0.7)  # it comes to rest, and does not go on
    np.testing.assert_allclose(env.robot.tcp_pose()[:3], before[:3], atol=0.015)

    person.trigger("stop")
    with pytest.raises(RobotInterrupted, match="stopped"):
        env.reset(seed=1)
    person.trigger("clear_errors")
    until_begun(env, seed=1)


def test_a_robot_on_topics_keeps_the_wall_clock():
    assert compose(["robot=ros_sim"]).clock == "realtime"
    with pytest.raises(RobotRLError, match=r"clock=stepped.*clock=realtime"):
        make_env(configuration("/stepped", "clock=stepped"))


def test_a_task_that_nothing_tracks_is_refused():
    with pytest.raises(RobotRLError, match=r"task\.tracked is missing"):
        make_env(compose(["robot=ros_sim", "task=reach_instructed"]))


def test_a_measured_jump_interrupts_the_episode_with_both_poses(cell):
    _, arms, env = cell
    env.reset(seed=3)
    # What is published jumps; the arm itself and its guard know nothing of it.
    node = arms[0].node
    real = node._pose.publish

    def off(message):
        message.pose.position.y += 0.1
        real(message)

    node._pose.publish = off
    with pytest.raises(RobotInterrupted, match=r"measured position jumped by \d+ mm .*from \["):
        stay(env)
