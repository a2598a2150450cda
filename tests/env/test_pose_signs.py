"""One rotation has one encoding: along an episode, in each episode, live and imported."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from drivers.arm.base import pose_of
from robot_rl.config import compose
from robot_rl.data.schema import Field
from robot_rl.env.factory import make_env
from robot_rl.env.robot_env import PoseSigns
from robot_rl.safety import rotations


def test_a_pose_that_turns_past_pi_changes_by_little():
    """As a controller tells it that writes rotation vectors."""
    signs = PoseSigns([Field("state/tcp_pose", "float32", (7,))])
    given = [pose_of([0.4, 0, 0.3, turn, 0.001, 0]) for turn in (3.1412, -3.1412, 3.1412)]
    assert np.abs(given[0] - given[1]).max() > 1.9
    seen = [signs.kept({"state/tcp_pose": pose})["state/tcp_pose"] for pose in given]
    for pose, before in zip(seen[1:], seen, strict=False):
        assert np.abs(pose - before).max() < 0.002
    signs.forget()  # another episode, that begins with the other one
    np.testing.assert_array_equal(
        signs.kept({"state/tcp_pose": given[1]})["state/tcp_pose"], seen[1]
    )


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_signs_are_continuous_and_the_same_for_a_whole_episode_at_once(shape):
    rng = np.random.default_rng(0)
    field = Field("state/object_poses", "float32", shape)
    for _ in range(20):
        turn, turns = Rotation.random(max(1, len(shape) - 1) and int(np.prod(shape[:-1])), rng), []
        for _ in range(300):
            turn = Rotation.from_rotvec(rng.normal(size=(len(turn), 3)) * 0.2) * turn
            turns.append(turn.as_quat())
        quaternions = np.array(turns) * rng.choice([-1.0, 1.0], (300, len(turn), 1))
        poses = np.concatenate([np.zeros((300, len(turn), 3)), quaternions], axis=-1)
        poses = poses.reshape(300, *shape).astype(np.float32)
        whole = rotations.continuous(poses)
        assert whole.dtype == poses.dtype
        assert (np.abs(np.diff(whole[..., 3:], axis=0)).max(axis=-1) < 1.0).all()
        assert (whole[0, ..., 3:] @ np.array([1.5, 0.3, 0.2, 1.0]) >= 0.0).all()
        np.testing.assert_array_equal(np.abs(whole), np.abs(poses))
        np.testing.assert_array_equal(rotations.continuous(whole), whole)
        np.testing.assert_array_equal(rotations.continuous(-poses), whole)
        signs = PoseSigns([field])
        live = [signs.kept({field.name: pose})[field.name] for pose in poses]
        np.testing.assert_array_equal(live, whole)


@pytest.mark.parametrize("yaw", np.linspace(-2.5, 2.5, 11))
@pytest.mark.parametrize("tilt", [0.0, 0.4])
def test_usual_poses_begin_far_from_where_the_sign_changes(yaw, tilt):
    """Tools that point down, and objects that stand upright."""
    for base in (rotations.DOWNWARD, np.array([0.0, 0.0, 0.0, 1.0])):
        turn = Rotation.from_rotvec([0, 0, yaw]) * Rotation.from_quat(base)
        near = [
            Rotation.from_rotvec([tilt * np.cos(a), tilt * np.sin(a), 0]) * turn for a in range(6)
        ]
        first = [np.concatenate([np.zeros(3), each.as_quat()]) for each in near]
        signed = [rotations.continuous(pose[None])[0, 3:] for pose in first]
        if abs(yaw) <= 2.0 or tilt == 0.0:
            assert min(each @ signed[0] for each in signed) > 0.9


def test_only_poses_have_signs():
    width = (7,)
    for name in ("state/tcp_pose", "state/left/tcp_pose", "state/goal_pose"):
        assert Field(name, "float32", width).holds_poses
    assert Field("state/object_poses", "float32", (4, 7)).holds_poses
    for field in (
        ("state/joint_pose", width),
        ("state/joint_positions", width),
        ("state/pose", (6,)),
    ):
        assert not Field(field[0], "float32", field[1]).holds_poses


def test_a_tool_that_is_turned_all_the_way_round_is_observed_without_a_jump():
    env = make_env(compose(["task=reach", "robot.limits.max_yaw=3.1416"]))
    try:
        seen, _ = env.reset(seed=0)
        yaws, before = 0.0, seen["state/tcp_pose"]
        for _ in range(140):
            seen, _, terminated, truncated, _ = env.step(np.array([0, 0, 0, 0, 0, 1], np.float32))
            pose = seen["state/tcp_pose"]
            assert np.abs(pose - before)[3:].max() < 0.2
            yaws += rotations.apart(before.astype(float), pose.astype(float))[1]
            before = pose
            if terminated or truncated:
                break
    finally:
        env.close()
    assert yaws > 1.5
