"""The peg of peg_insert, taken from a holder first."""

import numpy as np
import pytest
from scenes import PERFECT, configuration, environment, expert_episodes, successes


def test_socket_and_noise_are_those_of_peg_insert():
    ours = configuration("task=pick_insert").task.environment
    theirs = configuration("task=peg_insert").task.environment
    same = set(theirs) - {"_target_", "name", "instruction", "time_limit_steps", "start_height"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    for name in ("socket_front", "socket_left", "socket_floor", "peg"):
        geom = environment("pick_insert").robot.world.model.geom(name)
        other = environment("peg_insert").robot.world.model.geom(name)
        np.testing.assert_array_equal(geom.size, other.size)
        if name != "peg":
            np.testing.assert_array_equal(geom.pos, other.pos)


def test_holder_and_socket_never_meet():
    env = environment("pick_insert")
    model = env.robot.world.model

    def corners(body):
        pose = model.body(body)
        yaw = 2 * np.arctan2(pose.quat[3], pose.quat[0])
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        square = 0.04 * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
        return pose.pos[:2] + square @ turn.T

    for seed in range(60):
        env.reset(seed=seed)
        assert corners("socket")[:, 1].max() < corners("holder")[:, 1].min()


def test_the_peg_stands_in_its_holder_until_it_is_taken():
    env = environment("pick_insert")
    env.reset(seed=0)
    first = env.task.tip_pose()
    for _ in range(20):
        env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    np.testing.assert_allclose(env.task.tip_pose(), first, atol=1e-3)


def test_a_successful_episode_takes_the_peg_out_and_puts_it_in():
    first, steps = next(
        episode
        for episode in expert_episodes("pick_insert", 3, *PERFECT)
        if episode[1][-1].terminated
    )
    tips = [s.observation["state/object_poses"][1, :3] for s in steps]
    socket = first["state/object_poses"][0, :3]
    assert max(tip[2] for tip in tips) > socket[2] + 0.01
    np.testing.assert_allclose(tips[-1][:2], socket[:2], atol=0.006)
    assert tips[-1][2] < socket[2] - 0.015
    grip = [float(s.observation["state/gripper_position"][0]) for s in steps]
    assert grip[0] < 0.1
    assert abs(grip[-1] - 0.75) < 0.05  # 20 mm of 80 mm


@pytest.mark.slow
def test_a_perfect_expert_is_better():
    assert successes("pick_insert", 6, *PERFECT) == 6 > successes("pick_insert", 6)
