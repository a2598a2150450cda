"""MCAP as demonstrations: what the flight recorder wrote of episodes, and recordings of others."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("mcap_ros2", reason="needs mcap-ros2-support")

from demonstrations import run
from mcap_ros2.writer import Writer

from robot_rl.data.episodes import EpisodeDataset

MILLISECOND = 1_000_000
HEADER = """\
===
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
"""
POSE = f"""\
std_msgs/Header header
geometry_msgs/Pose pose
===
MSG: geometry_msgs/Pose
geometry_msgs/Point position
geometry_msgs/Quaternion orientation
===
MSG: geometry_msgs/Point
float64 x
float64 y
float64 z
===
MSG: geometry_msgs/Quaternion
float64 x
float64 y
float64 z
float64 w
{HEADER}"""
JOINTS = f"""\
std_msgs/Header header
string[] name
float64[] position
float64[] velocity
float64[] effort
{HEADER}"""
KINDS = {
    "current_pose": ("geometry_msgs/msg/PoseStamped", POSE),
    "target_pose": ("geometry_msgs/msg/PoseStamped", POSE),
    "action": ("sensor_msgs/msg/JointState", JOINTS),
    "events": ("std_msgs/msg/String", "string data"),
    "reward": ("std_msgs/msg/Float64", "float64 data"),
}


def write(path, messages):
    """Write (milliseconds, topic, value) to an MCAP file, in the namespace /cell."""
    with path.open("wb") as file:
        writer, schemas = Writer(file), {}
        for at, topic, value in messages:
            kind, definition = KINDS[topic]
            schemas.setdefault(kind, writer.register_msgdef(kind, definition))
            message = {"data": value}
            if topic.endswith("_pose"):
                place = dict(zip("xyz", (value, 0.0, 0.3), strict=True))
                turn = {"x": 1.0, "y": 0.0, "z": 0.0, "w": 0.0}
                message = {"pose": {"position": place, "orientation": turn}}
            elif topic == "action":
                message = {"name": ["x"], "position": [value], "velocity": [], "effort": []}
            elif topic == "events":
                message = {"data": value}
            writer.write_message(
                f"/cell/{topic}", schemas[kind], message, log_time=at * MILLISECOND
            )
        writer.finish()


def episode(begin, number, actions, outcome, *, pose=0.0):
    """An episode at 10 Hz whose pose moves on by 1 cm a step; the reward comes before its action.

    So messages that leave together may arrive in either order.
    """
    messages = [(begin - 5, "current_pose", pose), (begin, "events", f"episode {number} begins")]
    for i, action in enumerate(actions, 1):
        at = begin + 100 * i
        messages += [
            (at - 90, "target_pose", pose + 0.01 * i),
            (at - 5, "current_pose", pose + 0.01 * i),
            (at - 1, "reward", float(outcome == "success" and i == len(actions))),
            (at, "action", action),
        ]
    return [*messages, (at + 1, "events", f"episode {number} ends with {outcome}")]


def imported(folder, recording):
    """The episodes of a recording, its proposed mapping taken as it is but for the task."""
    assert run("import", recording, folder / "out.zarr") == 0
    mapping = folder / "out.map.yaml"
    text = mapping.read_text().replace("task: ???", "task: reach")
    mapping.write_text(text)
    assert run("import", recording, folder / "out.zarr", f"map={mapping}") == 0
    found = EpisodeDataset(folder / "out.zarr")
    return [found.whole(i) for i in range(len(found))]


def test_episodes_of_the_flight_recorder_are_imported_by_what_it_says_of_itself(tmp_path, capsys):
    ring = tmp_path / "20261126-SensorLate"
    ring.mkdir()
    first = episode(1_000, 1, [0.5, -0.25, 1.0], "success")
    write(ring / "1.mcap", first[:6])  # an episode may lie in two files
    cut = episode(3_000, 3, [0.75, 0.5], "failure, cut short", pose=0.5)
    lossy = episode(2_000, 2, [0.1, 0.2, 0.3, 0.4], "success")
    lossy = [one for one in lossy if one[:2] != (2_200, "action")]
    write(ring / "2.mcap", first[6:] + lossy + cut)
    success, failure = imported(tmp_path, ring)
    assert "without 1 episodes of which actions were lost" in capsys.readouterr().out
    assert success.rows["action"][:, 0].tolist() == [0.5, -0.25, 1.0, 0.0]
    assert success.rows["state/tcp_pose"][:, 0] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    # At rest at first; then from the pose that is measured to the target that it has reached.
    assert success.rows["state/target_lead"][:, 0] == pytest.approx(np.zeros(4))
    assert success.rows["reward"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert success.rows["terminated"].tolist() == [False, False, True, False]
    assert success.success
    assert not failure.success
    assert failure.rows["truncated"].tolist() == [False, True, False]
    assert failure.rows["state/tcp_pose"][:, 0] == pytest.approx([0.5, 0.51, 0.52])


def test_what_others_recorded_needs_targets_and_one_file_an_episode(tmp_path, capsys):
    for number in (1, 2):
        taken = episode(1_000, number, [0.0] * 4, "success")
        kept = [one for one in taken if one[1] in ("target_pose", "current_pose")]
        write(tmp_path / f"{number}.mcap", kept)
    assert run("import", tmp_path, tmp_path / "out.zarr") == 0
    text = (tmp_path / "out.map.yaml").read_text()
    assert "MCAP: 2 episodes, 8 steps" in text
    assert "action: target_pose" in text
    assert "action_convention: absolute" in text
    assert "action_names: [x, y, z, qx, qy, qz, qw]" in text
    assert "control_rate_hz: 10.0" in text
    write(tmp_path / "pose.mcap", [(1, "current_pose", 0.0)])
    assert run("import", tmp_path / "pose.mcap", tmp_path / "other.zarr") == 2
    assert "there is no whole episode" in capsys.readouterr().err
    torn = tmp_path / "torn.mcap"
    torn.write_bytes((tmp_path / "1.mcap").read_bytes()[:700])
    assert run("import", torn, tmp_path / "other.zarr") == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_flight_recorder_heard_of_demonstrations_is_what_was_stored(tmp_path):
    pytest.importorskip("rclpy", reason="needs ROS 2")
    words = ["collect", "robot=ros_sim", "task=reach", "demonstrations=2", "recorder.minutes=5"]
    words += [f"runs_directory={tmp_path}"]
    environment = {
        **os.environ,
        "ROS_DOMAIN_ID": str(100 + os.getpid() % 100),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    }
    command = [sys.executable, "-m", "robot_rl.cli", *words]
    subprocess.run(command, check=True, env=environment, timeout=120)
    (recorded,) = (tmp_path / "reach").glob("2*")
    stored = EpisodeDataset(recorded / "demonstrations.zarr")
    heard = imported(tmp_path, recorded / "recorder" / "ring")
    successes = [one for one in heard if one.success]
    assert len(successes) == len(stored) == 2
    for number, one in enumerate(successes):
        true = stored.whole(number)
        assert (one.rows["action"] == true.rows["action"]).all()
        assert (one.rows["terminated"] == true.rows["terminated"]).all()
        for name, tolerance in {"tcp_pose": 0.01, "target_lead": 0.01}.items():
            apart = one.rows[f"state/{name}"] - true.rows[f"state/{name}"]
            assert np.abs(apart).max() < tolerance
