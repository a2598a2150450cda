"""An arm that takes joint targets: its node, the environment on its topics, and a leader arm."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import rclpy
from arm_cell import sim_arm
from geometry_msgs.msg import PoseArray
from listening import PATIENT, PATIENT_LIMITS, PATIENT_NODES, Listener, Running
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from ros_cell import arm_node
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from drivers.arm.sim import SimJointArm
from drivers.arm.sim_node import SimArmNode
from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_expert
from robot_rl.errors import RobotRLError
from robot_rl.ros import conversions, qos
from robot_rl.ros.conversions import JointTargets
from robot_rl.ros.ros_client import RosClient
from robot_rl.run import RunDirectory

JOINTS = [f"joint{number}" for number in range(1, 8)]
DRIVER = {**sim_arm(), "_target_": "drivers.arm.sim.SimJointArm"}
LIMITS = {**PATIENT_LIMITS, "contact_task": False}


class StiffJointArm(SimJointArm):
    """An arm that does not yield."""

    compliance = "position"


class JointCell:
    """The node of a simulated arm that takes joint targets, and who commands it."""

    def __init__(self, namespace, **parameters):
        self.listener = Listener(namespace)
        node = self.listener.client.node
        self.states = self.listener.hear("joint_states", JointState)
        self.applied = self.listener.hear("applied_joints", JointState)
        self.modes = self.listener.hear("mode", String, qos.latched())
        self.targets = JointTargets(JOINTS)
        profile = qos.command_publisher(50.0)
        self.publisher = node.create_publisher(JointState, "target_joints", profile)
        self.running = Running(SimArmNode, namespace, DRIVER, **{**LIMITS, **parameters})
        self.listener.until(lambda: len(self.states) > 5)  # then the node believes them

    def joints(self):
        return conversions.joint_positions(self.states[-1], JOINTS)

    def send(self, target):
        self.publisher.publish(self.targets.message(target, time.time_ns()))

    def stream(self, target_of, until):
        """Send `target_of()` 50 times a second until something is true."""

        def found():
            self.send(target_of())
            return until()

        self.listener.until(found)

    def until_mode(self, words):
        return self.listener.until(lambda: self.modes and words in self.modes[-1].data)

    def close(self):
        self.running.close()
        self.listener.close()


@pytest.fixture
def joint_cell(request, opened):
    return opened(JointCell(f"/{request.node.name[:40]}"))


def test_joint_targets_are_followed_within_limits_and_the_arm_holds_without_them(joint_cell):
    cell = joint_cell
    began = cell.joints()
    target = began + np.array([0.3, 0, 0, 0, 0, 0, -0.3])
    # A command leads the joints by a bounded way: who asks for all at once gets a step.
    cell.stream(lambda: target, lambda: np.abs(cell.joints() - target).max() < 0.02)
    leads = [conversions.joint_positions(applied, JOINTS) for applied in cell.applied[:3]]
    assert max(np.abs(lead - began).max() for lead in leads) < 0.2
    cell.until_mode("hold: no command for 200 ms")
    held = cell.joints()

    cell.send(np.full(7, np.nan))
    cell.listener.reported("the target is not finite")
    message = cell.targets.message(held, time.time_ns())
    message.name = [f"other{number}" for number in range(7)]
    cell.publisher.publish(message)
    cell.listener.reported("the joint 'joint1' is missing")
    np.testing.assert_allclose(cell.joints(), held, atol=0.01)

    assert cell.listener.trigger("stop")[0]
    cell.until_mode("stopped")
    cell.send(began)
    cell.listener.reported("stopped")
    np.testing.assert_allclose(cell.joints(), held, atol=0.02)
    assert cell.listener.trigger("clear_errors")[0]
    cell.stream(lambda: began, lambda: np.abs(cell.joints() - began).max() < 0.02)


@pytest.mark.slow
def test_a_reset_moves_the_joints_and_keeps_to_its_node_after_a_restart(request, opened):
    name, end = f"/{request.node.name[:30]}", [0.2, -0.2, 0.0, -2.4, 0.0, 2.5, 0.6]
    cell = opened(JointCell(name, **{"reset.joints": end, "reset.speed_joints": 1.0}))
    success, message = cell.listener.trigger("reset")
    assert success, message
    np.testing.assert_allclose(cell.joints(), end, atol=0.05)
    assert cell.listener.trigger("stop")[0]
    cell.running.close()
    cell.running = Running(SimArmNode, name, DRIVER, **LIMITS)
    cell.until_mode("stopped: before this node started")
    assert cell.listener.trigger("clear_errors")[0]
    success, message = cell.listener.trigger("reset")
    assert not success
    assert "needs reset.joints alone" in message


def test_an_arm_that_takes_joint_targets_has_no_workspace_and_no_limit_of_force():
    for given, words in (
        ({"limits.workspace_high": [1.0, 1.0, 1.0]}, "keeps no workspace"),
        ({"contact_task": True}, "needs a wrench limit"),
    ):
        driver = {**DRIVER, "_target_": f"{__name__}.StiffJointArm"}
        parameters = {"driver": json.dumps(driver), **LIMITS, **given}
        context = rclpy.Context()
        rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
        values = [Parameter(name, value=value) for name, value in parameters.items()]
        node = SimArmNode(context=context, namespace="/refused", parameter_overrides=values)
        try:
            node.trigger_configure()
            assert words in node.trouble
        finally:
            node.destroy_node()
            rclpy.try_shutdown(context=context)


def test_actions_move_joints_and_an_expert_reaches_its_goal_with_them(opened):
    words = ["robot=ros_sim_joints", "task=reach", "robot.gripper=false", "robot.namespace=/deltas"]
    config = compose([*words, *PATIENT])
    opened(arm_node(config, {"contact_task": False}))
    env = opened(make_env(config))
    assert env.schema.action_names == tuple(f"{name}.delta" for name in JOINTS)
    seen, _ = env.reset(seed=3)
    assert seen["state/joint_lead"].shape == (7,)
    began, action = seen["state/joint_positions"], np.zeros(7, np.float32)
    action[6] = 1.0
    for _ in range(6):
        seen, *_, info = env.step(action)
    moved = seen["state/joint_positions"] - began
    assert moved[6] > 0.1
    assert np.abs(moved[:6]).max() < 0.02
    assert not info["clamped"]
    with pytest.raises(RobotRLError, match=r"joint1\.delta"):
        env.step(np.full(7, np.nan, np.float32))

    expert, success = make_expert(config, env), False
    seen, _ = env.reset(seed=4)
    expert.reset(np.random.default_rng(0))
    for _ in range(50):
        seen, _, terminated, _, info = env.step(expert.act(np.random.default_rng(1)))
        success = success or info["success"]
        if terminated:
            break
    assert success


@dataclass
class ScriptedLeader:
    """Somebody who holds a leader arm beside the robot, and leads it to the task's goal."""

    namespace: str
    config: object
    said: list = field(default_factory=list)

    def __enter__(self):
        self.client = RosClient("leader", self.namespace)
        env = make_env(compose(["task=reach"]))  # for the arm's kinematics
        self.world, self.env = env.robot.world, env
        node, sensors = self.client.node, qos.sensor_subscription(1)
        node.create_subscription(JointState, "joint_states", self._measure, sensors)
        node.create_subscription(PoseArray, "object_poses", self._look, sensors)
        node.create_subscription(
            JointState, "target_joints", lambda _: self.said.append(time.monotonic()), sensors
        )
        profile = qos.sensor_publisher(50.0)
        self.publisher = node.create_publisher(JointState, "leader/joint_states", profile)
        self.joints = self.goal = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._lead)
        self._thread.start()
        return self

    def __exit__(self, *problem):
        self._ending.set()
        self._thread.join()
        self.client.close()
        self.env.close()

    def _measure(self, message):
        self.joints = conversions.joint_positions(message, JOINTS)

    def _look(self, message):
        self.goal = conversions.poses_array(message, 1)[0]

    def _lead(self):
        """Hold the leader a little way ahead of the robot, towards the goal; a hand trembles."""
        sign = 1.0
        while not self._ending.wait(0.02):
            if self.joints is None or self.goal is None:
                continue
            way = self.world.kinematics.step(self.joints, self.goal)
            way *= min(1.0, 0.15 / max(np.abs(way).max(), 1e-9))
            sign = -sign
            message = conversions.joint_state_message(
                JOINTS, self.joints + way + sign * 0.015, None, time.time_ns()
            )
            self.publisher.publish(message)


@pytest.mark.slow
def test_a_leader_arm_demonstrates_and_what_was_cloned_trains_through_the_command_line(
    tmp_path,
):
    """Collect by a leader, clone, explore and train a few steps: with joint actions throughout."""
    common = [
        *("robot=ros_sim_joints", "task=reach", "robot.namespace=/led", *PATIENT_NODES),
        *("task.environment.tolerance=0.02", "task.environment.angle_tolerance=0.15"),
    ]

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "robot_rl.cli", *words, *common],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200.0,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with ScriptedLeader("/led", common):
        led = ("teleop=leader_topic", "teleop.device.namespace=/led")
        # Of a leader that is moved nobody knows whether it is to begin.
        unasked = ("recording.wait_for_start=false", "task.environment.time_limit_steps=150")
        output = run("collect", *led, *unasked, "demonstrations=1")
    assert "episode 1: success" in output
    dataset = RunDirectory.open("latest", tmp_path / "runs").path / "demonstrations.zarr"
    tiny = [
        *("cloning.updates=40", "policy.denoiser.hidden=[32,32]", "environment_steps=60"),
        *("block_steps=30", "algorithm.schedule.warmup_steps=30"),
        *("algorithm.schedule.critic_only_updates=5", "algorithm.schedule.batch_size=16"),
        *("algorithm.settings.actor_hidden=[32,32]", "algorithm.settings.critic_hidden=[32,32]"),
        *(
            "evaluation.final_episodes=1",
            "evaluation.every_steps=60",
            "task.environment.time_limit_steps=30",
        ),
    ]
    run("train", f"dataset={dataset}", *tiny)
