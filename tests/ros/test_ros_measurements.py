"""What a robot on topics makes of measurements: of one instant, or named for what is wrong."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from ros_cell import arm_node, configuration, towards
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from robot_rl.env.factory import make_env
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions, qos
from robot_rl.ros.faults import BadMeasurement, SensorLate, SensorsApart, SensorSlow
from robot_rl.ros.ros_client import RosClient
from robot_rl.ros.sensors import wait_for_all


def test_other_joints_than_the_arm_has_are_named(opened):
    config = configuration("/other_joints", "robot.joint_names=[joint1,elbow]")
    opened(arm_node(config))
    env = opened(make_env(config))
    with pytest.raises(BadMeasurement, match="joint_states: the joint 'elbow' is missing"):
        env.reset(seed=1)


class Publisher:
    """Publishes what a test gives it, in place of drivers."""

    def __init__(self, namespace):
        self.client = RosClient("publisher", namespace)
        self._publishers = {}

    def _publisher(self, topic, kind):
        if topic not in self._publishers:
            self._publishers[topic] = self.client.node.create_publisher(
                kind, topic, qos.sensor_publisher(100.0)
            )
        return self._publishers[topic]

    def send(self, topic, message):
        self._publisher(topic, type(message)).publish(message)

    def wait_for_a_subscriber(self, topic, kind):
        publisher = self._publisher(topic, kind)
        assert wait_until(publisher.get_subscription_count, 60.0)

    def joints(self, stamp):
        joints = [f"joint{number}" for number in range(1, 8)]
        return conversions.joint_state_message(joints, [0.0] * 7, [0.0] * 7, stamp)

    def arm(self, stamp, *, behind=0, pose_frame="base"):
        """What an arm measures at a stamp [ns], the wrench before that [ns]."""
        pose = [0.45, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]
        self.send("joint_states", self.joints(stamp))
        self.send("current_pose", conversions.pose_message(pose, stamp, pose_frame))
        self.send("current_twist", conversions.twist_message([0.0] * 6, stamp))
        self.send("current_wrench", conversions.wrench_message([0.0] * 6, stamp - behind))
        self.send("task/success", Bool(data=False))

    def close(self):
        self.client.close()


SECOND = 1_000_000_000  # ns


def robot_on(namespace, *overrides):
    words = ["robot.track_objects=false"]
    return make_env(configuration(namespace, *words, *overrides)).robot


def assembled(robot, send, late_ns=0):
    """The observation of what `send(stamp)` publishes twice, and nothing that was under way.

    One of its stamps may be so much earlier [ns].
    """
    for sensor in robot.all_sensors:
        sensor.forget()
    began = time.time_ns() - late_ns
    while any(sensor.count < 2 or sensor.newest().stamp_ns < began for sensor in robot.all_sensors):
        send(time.time_ns())
        time.sleep(0.005)  # no flood: else one topic is received long after another
    return robot.observe()


def test_measurements_of_one_instant_are_put_together_and_others_refused(opened):
    publisher, robot = (
        opened(Publisher("/instant")),
        opened(robot_on("/instant", "robot.sensors.skew_s=0.5")),
    )
    seen = assembled(robot, publisher.arm)
    np.testing.assert_allclose(seen["state/tcp_pose"][:3], [0.45, 0.0, 0.2])
    with pytest.raises(SensorsApart, match=r"/instant/current_wrench and .* \d+ ms apart"):
        assembled(robot, lambda stamp: publisher.arm(stamp, behind=SECOND), SECOND)


def test_a_silent_gripper_is_silent_and_not_measured_at_another_time(opened):
    options = ["robot.gripper=true", "robot.sensors.skew_s=0.5"]
    publisher, robot = opened(Publisher("/mute")), opened(robot_on("/mute", *options))

    def send(stamp):
        publisher.arm(stamp)
        publisher.send("gripper/state", conversions.joint_state_message(["g"], [0.0], None, stamp))

    assembled(robot, send)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        publisher.arm(time.time_ns())
        time.sleep(0.005)
    with pytest.raises(SensorLate, match="/mute/gripper/state is too old"):
        robot.observe()


def test_a_tracker_that_is_steadily_late_interrupts_and_makes_no_old_observation(opened):
    options = ["robot.track_objects=true", "robot.sensors.tracker_s=0.9"]
    publisher, robot = opened(Publisher("/tracker")), opened(robot_on("/tracker", *options))
    late_ns = 0

    def send(stamp):
        publisher.arm(stamp)
        pose = [0.5, 0.0, 0.1, 1.0, 0.0, 0.0, 0.0]
        publisher.send("object_poses", conversions.poses_message([pose], stamp - late_ns))

    assembled(robot, send)
    late_ns = SECOND
    said = r"/tracker/object_poses was not measured just now; got: 1\.\d+ s ago .* 900 ms"
    said += r".*raise robot\.sensors\.tracker_s$"
    with pytest.raises(SensorLate, match=said):
        assembled(robot, send, late_ns)


def test_objects_in_another_frame_than_the_arm_are_refused(capfd, opened):
    publisher, robot = (
        opened(Publisher("/frames")),
        opened(robot_on("/frames", "robot.track_objects=true")),
    )
    pose = [0.5, 0.0, 0.1, 1.0, 0.0, 0.0, 0.0]

    def sending(frame):
        def send(stamp):
            publisher.arm(stamp)
            publisher.send("object_poses", conversions.poses_message([pose], stamp, frame))

        return send

    assembled(robot, sending("base"))
    for _ in range(2):
        assembled(robot, sending(""))
    assert capfd.readouterr().err.count("/frames/object_poses names no frame_id") == 1
    said = r"/frames/object_poses: .*another frame.*got: frame_id camera_link; expected: base"
    with pytest.raises(BadMeasurement, match=said):  # noqa: PT012
        for _ in range(50):  # one of before may be the nearest to what the arm measured
            assembled(robot, sending("camera_link"))


def test_a_pose_in_another_frame_is_not_blamed_on_twist_or_wrench(opened):
    publisher, robot = opened(Publisher("/poses")), opened(robot_on("/poses"))
    said = r"/poses/current_pose: .*another frame.*got: frame_id tool0; expected: base"
    with pytest.raises(BadMeasurement, match=said):
        assembled(robot, lambda stamp: publisher.arm(stamp, pose_frame="tool0"))


def blind_arm_node(config):
    config.nodes.arm.parameters.driver["_target_"] = "blind_arm.BlindArm"
    return arm_node(config, max_force=0.0, max_torque=0.0)


def test_an_arm_that_measures_neither_forces_nor_its_speed_does_episodes(opened):
    config = configuration("/blind", "robot.twist=false", "robot.wrench=false")
    opened(blind_arm_node(config))
    env = opened(make_env(config))
    names = set(env.schema.observation_names)
    assert not names & {"state/tcp_velocity", "state/tcp_wrench"}
    seen, _ = env.reset(seed=3)
    began = np.linalg.norm(seen["state/relative_pose"][:3])
    truncated = False
    while not truncated and np.linalg.norm(seen["state/relative_pose"][:3]) > 0.6 * began:
        seen, _, _, truncated, info = env.step(towards(seen))
        assert info.get("interrupted") is None
    assert not truncated, "the arm has not come closer within the time limit"


def test_a_wrench_that_is_never_measured_is_named_with_the_setting_that_does_without_it(opened):
    config = configuration("/mute", "robot.twist=false", "robot.sensors.start_timeout_s=1.0")
    opened(blind_arm_node(config))
    env = opened(make_env(config))
    for _ in range(30):  # until the topics that there are have been discovered
        with pytest.raises(SensorLate) as late:
            env.reset(seed=3)
        if "/mute/current_wrench" in str(late.value):
            break
    assert "robot.wrench=false" in str(late.value)


def test_a_topic_with_too_few_measurements_to_begin_with_is_not_called_silent(opened):
    publisher = opened(Publisher("/slow"))
    robot = opened(robot_on("/slow", "robot.sensors.start_timeout_s=1.0"))
    joints = robot.measurements.joints
    # Discovery takes seconds on a busy machine: the stamp would be too old by then.
    publisher.wait_for_a_subscriber("joint_states", JointState)
    stamp = time.time_ns()
    while joints.count < 1:
        publisher.send("joint_states", publisher.joints(stamp))
    with pytest.raises(SensorSlow, match=r"/slow/joint_states gives .* too slowly.*1 in 1 s"):
        wait_for_all([joints], 2, 1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"encoding": "16UC1"}, "another size or kind"), ({"width": 12}, "fit its size")],
)
def test_a_camera_of_another_kind_is_named(changes, named, opened):
    camera = "observation.cameras=[{_target_:robot_rl.env.sim.cameras.CameraOptions,name:front,"
    size = "width:8,height:6}]"
    publisher, robot = opened(Publisher("/camera")), opened(robot_on("/camera", camera + size))
    picture = np.zeros((6, 8, 3), np.uint8)

    def send(stamp, **changed):
        publisher.arm(stamp)
        message = conversions.image_message(picture, stamp, "front")
        for name, value in changed.items():
            setattr(message, name, value)
        publisher.send("front/color/image_raw", message)

    assert assembled(robot, send)["images/front"].shape == (6, 8, 3)
    with pytest.raises(BadMeasurement, match=f"/camera/front/color/image_raw.*{named}"):
        assembled(robot, lambda stamp: send(stamp, **changes))


def test_a_repeated_stamp_is_no_new_measurement_and_a_clock_set_back_starts_again(opened):
    publisher, robot = opened(Publisher("/clock")), opened(robot_on("/clock"))
    assembled(robot, publisher.arm)
    pose, hour = robot.measurements.pose, 3_600_000_000_000
    count, newest = pose.count, pose.newest()
    for _ in range(20):
        publisher.send(
            "current_pose", conversions.pose_message([0, 0, 0, 1, 0, 0, 0], newest.stamp_ns)
        )
    publisher.send(
        "current_pose", conversions.pose_message([0, 0, 0, 1, 0, 0, 0], newest.stamp_ns - hour)
    )
    while pose.count == count:
        pass
    assert pose.count == count + 1
    assert pose.nearest(newest.stamp_ns).stamp_ns == newest.stamp_ns - hour


def test_a_callback_that_fails_surfaces_in_the_owner(opened):
    client = opened(RosClient("failing", "/failing"))
    publisher = opened(Publisher("/failing"))

    def fail(message):
        raise ZeroDivisionError("in a callback")

    client.node.create_subscription(JointState, "joint_states", fail, qos.sensor_subscription())
    deadline = time.monotonic() + 20.0
    while client.running and time.monotonic() < deadline:
        publisher.arm(1)
    with pytest.raises(RobotRLError, match="ZeroDivisionError"):
        client.check()
