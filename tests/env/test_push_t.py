"""The T: it slides as pushed, and its pose decides."""

import numpy as np
import pytest
from scenes import PERFECT, configuration, environment, expert_episodes, successes

from robot_rl.env.sim.tasks.push_t import BAR, GOAL, STEM
from robot_rl.safety import rotations

FORWARD = np.array([1, 0], np.float32)


def place(env, x, y, yaw):
    """Reset with the T at a pose relative to its target."""
    env.reset(seed=0)
    pose = np.concatenate([GOAL + np.array([x, y, 0.0]), rotations.about_z(yaw)])
    env.robot.world.set_start_pose("t_block", pose)
    env.robot.reset(env.robot.world.tcp_pose(), np.random.default_rng(0))


def test_the_frame_of_the_t_is_at_its_centroid():
    model = environment("push_t").robot.world.model
    bar, stem = model.geom("bar"), model.geom("stem")
    areas = np.array([BAR[0] * BAR[1], STEM[0] * STEM[1]])
    assert areas @ [bar.pos[0], stem.pos[0]] == pytest.approx(0.0, abs=1e-12)
    assert stem.pos[0] - bar.pos[0] == pytest.approx((BAR[0] + STEM[0]) / 2)


@pytest.mark.parametrize(
    ("pose", "reached"),
    [
        ((0.0, 0.0, 0.0), True),
        ((0.0, 0.95, 0.0), True),
        ((0.8, -0.8, 0.0), False),
        ((1.05, 0.0, 0.0), False),
        ((0.0, 0.0, 0.95), True),
        ((0.0, 0.0, -1.05), False),
    ],
)
def test_success_is_a_pose_within_both_tolerances(pose, reached):
    env = environment("push_t")
    settings = configuration("task=push_t").task.environment
    scale = [settings.tolerance, settings.tolerance, settings.angle_tolerance]
    place(env, *np.multiply(pose, scale))
    assert env.task.succeeded() is reached


def test_a_push_at_the_middle_goes_straight_and_one_beside_it_turns():
    turned = {}
    for beside in (-0.03, 0.0, 0.03):
        env = environment("push_t")
        place(env, -0.12, beside, 0.0)
        start = env.robot.world.tcp_pose()
        for _ in range(18):
            env.step(FORWARD)
        pushed = env.robot.world.tcp_pose()[0] - start[0]
        assert pushed > 0.1
        turned[beside] = env.task.remaining()[2]
        assert env.task.remaining()[0] > -0.12 + 0.02
    assert abs(turned[0.0] - turned[0.03]) > 0.1
    assert turned[-0.03] * turned[0.03] < 0.0


def test_the_pusher_stays_at_its_height_and_upright():
    env = environment("push_t")
    first, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(40):
        seen, *_ = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
    tcp = seen["state/tcp_pose"]
    assert tcp[2] == pytest.approx(first["state/tcp_pose"][2], abs=2e-3)
    assert abs(tcp[3]) > 0.999


def test_the_t_rests_until_it_is_touched():
    env = environment("push_t")
    env.reset(seed=2)
    first = env.task.block_pose()
    for _ in range(20):
        env.step(np.zeros(2, np.float32))
    np.testing.assert_allclose(env.task.block_pose(), first, atol=1e-4)


def test_the_observation_is_the_t_from_its_target_with_a_fixed_error():
    settings = configuration("task=push_t").task.environment
    for first, steps in expert_episodes("push_t", 6, *PERFECT):
        for seen in (first, *(step.observation for step in steps)):
            x, y, yaw = seen["state/relative_pose"]
            block = seen["state/object_poses"][0].astype(np.float64)
            np.testing.assert_allclose(block[:2], GOAL[:2] + np.array([x, y]), atol=1e-6)
            assert rotations.heading(block[3:]) == pytest.approx(yaw, abs=1e-5)
        if steps[-1].terminated:
            allowed = settings.tolerance + np.sqrt(2) * settings.position_noise
            assert np.hypot(x, y) <= allowed + 1e-6
            assert abs(yaw) <= settings.angle_tolerance + settings.yaw_noise + 1e-6


@pytest.mark.slow
def test_a_perfect_expert_hardly_fails_and_a_worse_one_fails_more():
    worse = "task.expert.imperfections.offset=0.02"
    perfect = successes("push_t", 8, *PERFECT)
    assert perfect == 8
    assert successes("push_t", 8, worse) < successes("push_t", 8) <= perfect
