"""The peg of peg_insert, taken from a holder first."""

import numpy as np
import pytest
from scenes import (
    PERFECT,
    configuration,
    environment,
    expert_episode,
    expert_episodes,
    successes,
)

from policies import registry
from robot_rl.env.factory import make_env, make_expert, make_session
from robot_rl.env.sim.task import Imperfections


def world_and_hand(*overrides):
    config = configuration("operator=simulated", *overrides)
    env = make_env(config)
    imperfections = registry.make(config.operator.imperfections, Imperfections)
    return env, make_expert(config, env, "hand", imperfections=imperfections)


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


def test_the_hand_inserts_what_it_sees_with_an_error():
    env, hand = world_and_hand("task=pick_insert")
    ends = [expert_episode(env, hand, seed)[1][-1] for seed in range(12)]
    assert sum(end.terminated for end in ends) >= 11


def test_the_hand_reaches_for_the_peg_where_it_is_seen():
    env, hand = world_and_hand("task=pick_insert", "task.environment.peg_noise=0.02")
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    hand.reset(rng)
    goal = hand.waypoint(rng)
    assert np.abs(env.task.seen_tip() - env.task.tip_pose()).max() > 0.005
    assert goal[:2] == pytest.approx(env.task.seen_tip()[:2])


def test_the_hand_keeps_a_peg_that_somebody_else_has_taken():
    env, hand = world_and_hand("task=pick_insert")
    rng = np.random.default_rng(0)
    somebody = make_expert(configuration("task=pick_insert"), env)
    env.reset(seed=0)
    somebody.reset(rng)
    while env.task.tip_pose()[2] < 0.04:
        env.step(somebody.act(rng))
    hand.reset(rng)
    assert hand.act(rng)[-1] == 1.0
    env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    assert hand.act(rng)[-1] == -1.0


@pytest.mark.parametrize("seed", range(4))
def test_the_operator_lets_be_who_takes_and_carries_the_peg_another_way(seed):
    watching = "operator.simulated.habits.attention=1.0"
    config = configuration("task=pick_insert", "operator=simulated", watching)
    operated = make_session(config)
    env = operated.env
    lower = configuration(
        "task=pick_insert",
        "task.expert.carry_height=0.01",
        "task.expert.grasp.hover=0.0",
        "task.expert.imperfections.offset=0.0",
        "task.expert.imperfections.hesitation=0.0",
    )
    somebody = make_expert(lower, env)
    rng = np.random.default_rng(seed)
    operated.reset(seed=seed)
    somebody.reset(rng)
    away, carried, intervened = np.inf, 0, 0
    while away > 0.01:
        *_, info = operated.step(somebody.act(rng))
        tip = env.task.tip_pose()
        away = float(np.hypot(*(tip - env.task.socket_pose())[:2]))
        carried += tip[2] > 0.04
        intervened += info["intervened"]
    assert carried > 15
    assert intervened == 0


def test_the_operator_calls_it_a_failure_when_the_peg_lies_on_the_table():
    watching = "operator.simulated.habits.attention=1.0"
    config = configuration("task=pick_insert", "operator=simulated", watching)
    operated = make_session(config)
    env = operated.env
    somebody = make_expert(configuration("task=pick_insert"), env)
    rng = np.random.default_rng(0)
    operated.reset(seed=2)
    somebody.reset(rng)
    while env.task.tip_pose()[2] < 0.06:
        operated.step(somebody.act(rng))
    steps, failed = 0, False
    while not failed:  # tilted, and let go in the air beside the holder
        gripper = -1.0 if steps > 10 else 1.0
        action = np.array([0, -1, 0, 1, 0, 0, gripper], np.float32)
        _, reward, failed, truncated, info = operated.step(action)
        assert not truncated
        steps += 1
    assert steps < 60
    assert (reward, info["success"]) == (0.0, False)
