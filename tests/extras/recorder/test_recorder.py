"""The flight recorder as a process: what it has heard can be read, whatever ends it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("mcap_ros2", reason="needs mcap-ros2-support")

from geometry_msgs.msg import PoseStamped
from listening import Listener  # with a ROS domain of this process's own
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_rl.env.robot import FAULT
from robot_rl.ros import conversions, qos

POSE = [0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0]


@pytest.fixture
def recorder(tmp_path):
    """Starts a recorder in the namespace /flown."""
    started = []

    def start():
        words = ["-m", "robot_rl.extras.recorder.recorder", str(tmp_path), "/flown", "10", "60"]
        started.append(subprocess.Popen([sys.executable, *words]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def read(path):
    """What a file holds: (topic, message)."""
    with path.open("rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        return [(found.topic, ros) for _, found, _, ros in reader.iter_decoded_messages()]


def test_a_fault_and_a_wish_keep_what_was_on_all_topics_and_a_killed_recorder_loses_no_file(
    recorder, tmp_path
):
    with closing(Listener("/flown")) as robot:
        poses = robot.client.node.create_publisher(PoseStamped, "current_pose", 10)
        events = robot.client.node.create_publisher(String, "events", qos.latched(10))
        sending = robot.client.node.create_timer(
            0.02, lambda: poses.publish(conversions.pose_message(POSE, 1))
        )
        process = recorder()
        robot.until(lambda: poses.get_subscription_count())
        robot.until(lambda: ring_bytes(tmp_path) > 2_000)  # more than a file's beginning
        process.kill()
        process.wait()
        recorder()
        # Again and again: the one that was killed is known for a while, and answers nothing.
        keep = ("recorder/keep", Trigger.Request(), 60.0)
        assert robot.client.call(Trigger, *keep, again_s=1.0).success
        asked = min(tmp_path.glob("*-asked"))
        events.publish(String(data=f"{FAULT}SensorLate: no message on /wrist/color/image_raw"))
        (fault,) = robot.until(lambda: list(tmp_path.glob("*-SensorLate")))
        robot.client.node.destroy_timer(sending)
    left, *_ = sorted(asked.glob("*.mcap"))  # of the one that was killed
    topic, pose = read(left)[-1]
    assert topic == "/flown/current_pose"
    assert conversions.from_pose(pose.pose).tolist() == POSE
    heard = [one for path in sorted(fault.glob("*.mcap")) for one in read(path)]
    assert f"{FAULT}SensorLate" in next(m.data for name, m in heard if name == "/flown/events")


def ring_bytes(folder):
    """How much is on the disk."""
    return sum(path.stat().st_size for path in folder.glob("ring/*.mcap"))
