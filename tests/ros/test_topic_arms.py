"""Arms that have a controller on topics: a simulated one plays the controller."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import mujoco
from arm_cell import WORKSPACE, ArmCell, sim_arm
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from listening import Running
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from drivers.arm.node import ArmNode
from drivers.arm.sim_node import SimArmNode
from drivers.arm.topics import PoseTopicArm, TrajectoryTopicArm
from drivers.base import DriverError, DriverFault
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.sim.world import site_pose
from robot_rl.processes.resources import find_resource
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions, qos
from robot_rl.ros.faults import BadMeasurement, SensorLate
from robot_rl.ros.ros_client import RosClient

JOINTS = [f"joint{i}" for i in range(1, 8)]
PANDA = "hardware/panda/panda.xml"
HOME = np.array([0.0, 0.2, 0.0, -2.3, 0.0, 2.5, 0.785])
PATIENT = {"timeout_s": 20.0, "stale_after_s": 5.0}


def pose_arm(namespace, **options):
    """The configuration of a driver for a controller that takes poses."""
    target = "drivers.arm.topics.PoseTopicArm"
    return {"_target_": target, "namespace": namespace, "joint_names": JOINTS, **options}


@pytest.fixture
def controller(opened):
    """A simulated arm in a namespace of its own, which takes target poses."""
    namespace = f"/controller_{os.getpid()}_{time.monotonic_ns()}"
    running = opened(Running(SimArmNode, namespace, sim_arm(), **WORKSPACE))
    running.namespace = namespace
    return running


def test_the_arms_node_drives_a_foreign_impedance_controller(controller, opened):
    driver = pose_arm(controller.namespace, stale_after_s=2.0)
    cell = opened(ArmCell(f"/arm_{os.getpid()}", driver, kind=ArmNode))
    start = cell.pose()
    target = start + np.array([0.015, 0, 0, 0, 0, 0, 0])
    reached = lambda: cell.pose()[0] > start[0] + 0.01  # noqa: E731
    cell.stream(lambda _: target, 60.0, until=reached)
    assert cell.listener.trigger("stop")[0]
    cell.until_mode("stopped")


def test_a_stop_while_the_controller_is_silent_is_kept(controller, tmp_path, opened):
    driver = pose_arm(controller.namespace, stale_after_s=1.0)
    options = {"reconnect_after_s": 600.0, "stop_folder": str(tmp_path)}
    cell = opened(ArmCell(f"/silent_{os.getpid()}", driver, kind=ArmNode, **options))
    controller.do("deactivate")
    cell.until_mode("is too old")
    assert cell.listener.trigger("stop")[0]
    cell.until_mode("stopped")
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize(("shift", "turn"), [(0.08, 0.0), (0.1, 1.5)], ids=["shifted", "turned"])
def test_a_pose_that_jumps_stops_a_foreign_arm_and_sends_it_nowhere(tmp_path, shift, turn, opened):
    controller = opened(FaultyController(f"/jumping_{os.getpid()}", "none"))
    driver = pose_arm(f"/jumping_{os.getpid()}", stale_after_s=2.0)
    cell = opened(
        ArmCell(f"/jumped_{os.getpid()}", driver, kind=ArmNode, stop_folder=str(tmp_path))
    )
    sent = []
    controller.client.node.create_subscription(PoseStamped, "target_pose", sent.append, 100)
    start = cell.pose()
    cell.stream(lambda _: start, 60.0, until=lambda: len(sent) > 20)
    half = 0.5 * turn
    controller.pose[0] += shift
    controller.pose[3:] = [np.cos(half), np.sin(half), 0.0, 0.0]
    cell.stream(lambda _: start, 60.0, until=lambda: cell.mode().startswith("stopped"))
    cell.stream(lambda _: start, 0.5)
    poses = np.array([conversions.pose_array(message) for message in sent])
    np.testing.assert_allclose(poses, np.tile(start, (len(poses), 1)), atol=1e-3)


def test_a_second_publisher_of_the_pose_moves_no_foreign_arm_and_is_named(controller, tmp_path):
    driver = pose_arm(controller.namespace, stale_after_s=2.0)
    cell = ArmCell(f"/two_{os.getpid()}", driver, kind=ArmNode, stop_folder=str(tmp_path))
    intruder, watcher = (RosClient(name, controller.namespace) for name in ("intruder", "watcher"))
    sent = []
    take = lambda message: sent.append(message.pose.position.x)  # noqa: E731
    watcher.node.create_subscription(PoseStamped, "target_pose", take, 100)
    try:
        start = cell.pose()
        cell.stream(lambda _: start, 60.0, until=lambda: len(sent) > 20)
        wrong = start + np.array([0.15, 0, 0, 0, 0, 0, 0])
        publisher = intruder.node.create_publisher(
            PoseStamped, "current_pose", qos.sensor_publisher(50.0)
        )
        send = lambda: publisher.publish(conversions.pose_message(wrong, time.time_ns()))  # noqa: E731
        intruder.node.create_timer(0.02, send)
        cell.stream(lambda _: start, 60.0, until=lambda: "/intruder_" in cell.mode())
        assert "has several publishers" in cell.mode()
        cell.stream(lambda _: start, 0.5)
        assert np.ptp(sent) < 0.002
        intruder.close()
        cell.stream(lambda _: start, 1.5)
        assert cell.mode().startswith("stopped: ")
        cell.listener.until(lambda: cell.listener.trigger("clear_errors")[0])  # once connected
        cell.stream(lambda _: start, 60.0, until=lambda: "follow" in cell.mode())
        assert np.ptp(sent) < 0.002
    finally:
        intruder.close()
        watcher.close()
        cell.close()


def publish_in(publisher, frame):
    """Let a publisher name another frame from now on."""
    publish = publisher.publish

    def renamed(message):
        message.header.frame_id = frame
        publish(message)

    publisher.publish = renamed


def test_the_frame_of_a_controller_is_that_of_its_targets_or_is_refused(controller, opened):
    arm = opened(PoseTopicArm(controller.namespace, JOINTS, **PATIENT))
    other = opened(PoseTopicArm(controller.namespace, JOINTS, frame="base_link", **PATIENT))
    targets = []
    controller.node.create_subscription(PoseStamped, "target_pose", targets.append, 10)
    for publisher in (controller.node._pose, controller.node._twist, controller.node._wrench):
        publish_in(publisher, "world")
    for driver in (arm, other):
        driver.connect()
    assert wait_until(lambda: arm.read().frame == "world", 20.0)
    arm.command(arm.read().tcp_pose)
    assert wait_until(lambda: targets, 20.0)
    assert targets[0].header.frame_id == "world"
    with pytest.raises(BadMeasurement, match=r"current_pose: .*world; expected: base_link"):
        other.read()


def test_a_wrench_in_the_tools_axes_is_refused(controller, opened):
    arm = opened(PoseTopicArm(controller.namespace, JOINTS, **PATIENT))
    publish_in(controller.node._wrench, "tool0")
    arm.connect()
    with pytest.raises(BadMeasurement, match=r"current_wrench: .*tool0; expected: base"):
        wait_until(lambda: arm.read() is None, 10.0)


def test_the_setting_that_is_named_for_a_late_controller_is_one_of_the_command_line(opened):
    namespace = f"/late_{os.getpid()}"
    opened(FaultyController(namespace, "late"))
    arm = opened(PoseTopicArm(namespace, JOINTS, **{**PATIENT, "stale_after_s": 1.0}))
    arm.connect()
    with pytest.raises(SensorLate, match=r"raise nodes\.arm\.parameters\.driver\.stale_after_s$"):
        wait_until(lambda: arm.read() is None, 10.0)
    words = ["robot=topics", "task=reach", "nodes.arm.parameters.driver.namespace=/controller"]
    words += ["robot.joint_names=[a]", "nodes.arm.parameters.reset.pose=[0.4,0,0.3,1,0,0,0]"]
    config = compose([*words, "nodes.arm.parameters.driver.stale_after_s=0.2"])
    assert config.nodes.arm.parameters.driver.stale_after_s == 0.2


def test_an_arm_that_takes_poses_needs_a_measured_one():
    with pytest.raises(DriverError, match=r"empty pose_topic.*TrajectoryTopicArm"):
        PoseTopicArm("/controller", JOINTS, pose_topic="")


def test_a_controller_that_falls_silent_is_named(controller, opened):
    arm = opened(PoseTopicArm(controller.namespace, JOINTS, timeout_s=20.0, stale_after_s=2.0))
    arm.connect()
    assert arm.read().tcp_pose.shape == (7,)
    controller.do("deactivate")
    time.sleep(2.5)
    with pytest.raises(SensorLate, match=rf"{controller.namespace}/\w+ is too old"):
        arm.read()


def test_a_missing_controller_names_its_topic():
    arm = PoseTopicArm("/nobody", JOINTS, timeout_s=0.3)
    with pytest.raises(SensorLate, match="no message on /nobody/joint_states"):
        arm.connect()
    arm.close()


def test_a_joint_that_is_missing_is_named(controller, opened):
    arm = opened(PoseTopicArm(controller.namespace, [*JOINTS, "joint8"], **PATIENT))
    arm.connect()
    with pytest.raises(BadMeasurement, match="'joint8' is missing"):
        arm.read()


class TrajectoryController:
    """Plays ros2_control: goes at once to the point of each trajectory."""

    def __init__(self, namespace):
        self.model = mujoco.MjModel.from_xml_path(str(find_resource(PANDA)))
        self.data = mujoco.MjData(self.model)
        self.joints = HOME.copy()
        self.taken = 0
        self.client = RosClient("controller", namespace)
        sensors = qos.sensor_publisher(50.0)
        node = self.client.node
        self.states = node.create_publisher(JointState, "joint_states", sensors)
        topic = "joint_trajectory_controller/joint_trajectory"
        node.create_subscription(JointTrajectory, topic, self._take, qos.command_subscription())
        node.create_timer(0.02, self._publish)

    def _take(self, message):
        assert list(message.joint_names) == JOINTS
        self.joints = np.array(message.points[0].positions)
        self.taken += 1

    def pose(self):
        self.data.qpos[:7] = self.joints
        mujoco.mj_kinematics(self.model, self.data)
        return site_pose(self.data, self.model.site("tcp").id)

    def _publish(self):
        now = time.time_ns()
        self.states.publish(conversions.joint_state_message(JOINTS, self.joints, np.zeros(7), now))

    def close(self):
        self.client.close()


def test_targets_become_joint_trajectories(opened):
    namespace = f"/ros2_control_{os.getpid()}"
    controller = opened(TrajectoryController(namespace))
    arm = opened(TrajectoryTopicArm(namespace, JOINTS, PANDA, **PATIENT))
    arm.connect()
    start = arm.read().tcp_pose  # from the joints: such a controller publishes no pose
    np.testing.assert_allclose(start, controller.pose(), atol=1e-9)
    target = start + np.array([0.02, -0.02, 0.01, 0, 0, 0, 0])
    deadline = time.monotonic() + 20.0
    while not controller.taken and time.monotonic() < deadline:
        arm.command(target)
        time.sleep(0.1)
    np.testing.assert_allclose(controller.pose()[:3], target[:3], atol=1e-3)
    assert np.isnan(arm.read().tcp_wrench).all()
    with pytest.raises(DriverFault, match="cannot reach"):
        arm.command(start + np.array([3.0, 0, 0, 0, 0, 0, 0]))


class FaultyController:
    """Plays a controller that publishes what it should, but for one thing."""

    def __init__(self, namespace, fault):
        self.client = RosClient("controller", namespace)
        sensors = qos.sensor_publisher(50.0)
        kinds = {
            "joint_states": JointState,
            "current_pose": PoseStamped,
            "current_twist": TwistStamped,
            "current_wrench": WrenchStamped,
        }
        self.pose = np.array([0.45, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])
        self._fault = fault
        self._publishers = {
            topic: self.client.node.create_publisher(kind, topic, sensors)
            for topic, kind in kinds.items()
            if topic != fault
        }
        self.client.node.create_timer(0.02, self._publish)

    def _publish(self):
        now = 0 if self._fault == "stamp" else time.time_ns()
        now -= 2_000_000_000 if self._fault == "late" else 0
        pose = self.pose.copy()
        pose[2] = np.nan if self._fault == "pose" else pose[2]
        velocities = None if self._fault == "velocities" else np.zeros(7)
        made = {
            "joint_states": conversions.joint_state_message(JOINTS, HOME, velocities, now),
            "current_pose": conversions.pose_message(pose, now),
            "current_twist": conversions.twist_message(np.zeros(6), now),
            "current_wrench": conversions.wrench_message(np.zeros(6), now),
        }
        for topic, publisher in self._publishers.items():
            publisher.publish(made[topic])

    def close(self):
        self.client.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("pose", "'z' is not finite"),
        pytest.param("stamp", "all bear one and the same stamp", marks=pytest.mark.slow),
        ("current_wrench", "no message on /faulty_current_wrench/current_wrench"),
        pytest.param("velocities", "no velocity of every joint", marks=pytest.mark.slow),
    ],
)
def test_the_fault_of_an_arm_is_reported_where_its_measurements_are_missed(fault, words, opened):
    opened(FaultyController(f"/faulty_{fault}", fault))
    namespace = f"/missed_{fault}"
    timeout_s = 1.0 if fault == "current_wrench" else 20.0
    driver = pose_arm(f"/faulty_{fault}", timeout_s=timeout_s)
    opened(Running(ArmNode, namespace, driver, **WORKSPACE))
    words_of_robot = ["robot=ros_sim", "task=reach", f"robot.namespace={namespace}"]
    words_of_robot += ["robot.gripper=false", "robot.sensors.start_timeout_s=0.5"]
    env = opened(make_env(compose(words_of_robot)))
    message = ""
    deadline = time.monotonic() + 60.0
    while words not in message:
        assert time.monotonic() < deadline, message
        with pytest.raises(RobotInterrupted) as missed:
            env.reset(seed=1)
        message = str(missed.value)
    assert f"{namespace}/arm says: " in message


def test_a_model_without_the_arm_is_named():
    with pytest.raises(DriverError, match=r"does not describe the arm.*'flange'"):
        TrajectoryTopicArm("/nobody", JOINTS, PANDA, tcp_site="flange")
