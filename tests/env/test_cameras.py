"""What simulated cameras give: images of the scene, noisy where asked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scenes import configuration

from robot_rl.config import ConfigError, compose
from robot_rl.env.factory import make_env, observed_widths
from robot_rl.env.sim.cameras import CameraError
from robot_rl.errors import RobotRLError

UP = np.array([0, 0, 1, 0, 0, 0], np.float32)


@pytest.fixture
def seeing(opened):
    """Return a function that makes an environment with one camera; all are closed at the end."""

    def make(**changes):
        config = configuration("task=peg_insert", "observation=pixels")
        camera = {"_target_": "robot_rl.env.sim.cameras.CameraOptions", "name": "front"}
        config.robot.cameras = [{**camera, "width": 40, "height": 30, **changes}]
        return opened(make_env(config))

    return make


def frames(env, seed=3, steps=4):
    observation, _ = env.reset(seed=seed)
    seen = [observation["images/front"]]
    for _ in range(steps):
        seen.append(env.step(UP)[0]["images/front"])
    return seen


def test_a_camera_sees_the_arm_move_and_no_pose_of_an_object_is_observed(seeing):
    env = seeing()
    assert env.observation_space["images/front"].shape == (30, 40, 3)
    assert not {"state/object_poses", "state/relative_pose"} & set(env.observation_space)
    first, *_, last = frames(env)
    assert first.dtype == np.uint8
    assert (first != last).any(-1).mean() > 0.01
    assert first.std() > 10


def test_cameras_can_be_named_on_the_command_line(opened):
    cameras = "observation.cameras=[{name:front,width:40,height:30},{name:wrist}]"
    env = opened(make_env(configuration("task=reach", cameras)))
    observation, _ = env.reset(seed=0)
    assert observation["images/front"].shape == (30, 40, 3)
    assert observation["images/wrist"].shape == (128, 128, 3)


@pytest.mark.parametrize("cameras", ["[front]", "[{name:wrist},{width:64}]", "[{name:3}]"])
def test_a_camera_without_a_name_is_refused_with_what_to_write(cameras):
    with pytest.raises(ConfigError, match=r"cameras\[[01]\] has no name.*cameras=\[\{name:front,"):
        compose(["task=reach", f"observation.cameras={cameras}"])


def test_pictures_are_recorded_beside_the_state_that_the_policy_sees():
    config = configuration("task=reach", "observation=state_and_cameras")
    env = make_env(config)
    try:
        observation, _ = env.reset(seed=0)
        assert observation["images/front"].shape == (128, 128, 3)
        assert observation["images/wrist"].shape == (128, 128, 3)
        seen = observed_widths(config, env.schema)
    finally:
        env.close()
    assert config.observation.vision is None
    assert list(seen) == list(config.task.observation)


def test_what_the_robot_does_not_observe_cannot_be_what_the_policy_sees(opened):
    config = configuration("task=reach", "observation=state", "task.observation=[state/lidar]")
    env = opened(make_env(config))
    with pytest.raises(RobotRLError, match=r"does not observe; got: state/lidar;.*tcp_pose"):
        observed_widths(config, env.schema)


def test_the_seed_decides_the_images(seeing):
    env = seeing(noise=3.0)
    once, again, other = frames(env), frames(env), frames(env, seed=4)
    np.testing.assert_array_equal(once, again)
    assert (np.array(once) != np.array(other)).any()


def test_noise_is_as_large_as_it_says(seeing):
    clean, noisy = frames(seeing(), steps=0)[0], frames(seeing(noise=4.0), steps=0)[0]
    inside = (clean > 20) & (clean < 235)
    assert 3.5 < (noisy.astype(float) - clean)[inside].std() < 4.5


def test_depth_is_the_distance_in_millimetres(seeing):
    env = seeing(depth=True)
    depth = env.reset(seed=0)[0]["images/front_depth"]
    assert (depth.dtype, depth.shape) == (np.uint16, (30, 40, 1))
    # The camera is 0.32 m above the table and 0.35 m in front of the socket, looking down at it.
    assert 300 < depth.min() < depth.max() < 1500
    assert depth[-1].mean() < depth[0].mean()


def test_points_lie_on_what_is_there_and_apart(seeing):
    region = [[0.35, -0.15, 0.002], [0.60, 0.15, 0.25]]
    env = seeing(width=96, height=96, points=128, region=region)
    cloud = env.reset(seed=3)[0]["points/front"]
    assert (cloud.dtype, cloud.shape) == (np.float32, (128, 6))
    places, colours = np.split(cloud, 2, 1)
    assert ((places >= region[0]) & (places <= region[1])).all()
    assert ((colours >= 0) & (colours <= 1)).all()
    assert len(np.unique(places, axis=0)) == 128
    blue = places[colours[:, 2] > colours[:, 0] + 0.1]
    socket = env.task.socket_pose()
    assert blue[:, 2].max() == pytest.approx(socket[2], abs=0.002)  # its upper face
    assert np.abs(blue[:, :2].mean(0) - socket[:2]).max() < 0.02
    orange = places[colours[:, 0] > colours[:, 2] + 0.3]
    tip = env.task.tip_pose()
    assert orange[:, 2].min() == pytest.approx(tip[2], abs=0.005)
    assert np.abs(orange[:, :2].mean(0) - tip[:2]).max() < 0.02
    np.testing.assert_array_equal(env.reset(seed=3)[0]["points/front"], cloud)
    assert (env.reset(seed=4)[0]["points/front"] != cloud).any()


def test_a_region_with_nothing_in_it_gives_zeros(seeing):
    env = seeing(points=16, region=[[0.0, 0.5, 0.5], [0.1, 0.6, 0.6]])
    assert not env.reset(seed=3)[0]["points/front"].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "frond"}, "no such camera; got: frond; expected: .*front.*wrist"),
        ({"width": 0}, "the width of camera 'front' is out of range; got: 0; expected: >= 1"),
        ({"noise": -1}, "noise of camera 'front' is out of range"),
        ({"region": [[0, 0, 0], [1, 0, 1]]}, "region of camera 'front' is empty"),
        ({"width": 5000}, "cannot be rendered"),
    ],
)
def test_a_camera_that_cannot_be_is_one_clear_error(seeing, changes, words):
    with pytest.raises(CameraError, match=words):
        seeing(**changes)


def test_environments_that_nobody_has_closed_end_in_silence():
    program = """
import gymnasium, robot_rl
for task in ("Reach", "PushT"):
    env = gymnasium.make(f"robot_rl/{task}-v0", overrides=["observation=pixels"])
    env.reset(seed=0)
    kept = (globals().get("kept"), env)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
