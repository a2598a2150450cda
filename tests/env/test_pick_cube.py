"""The cube and the gripper that lifts it."""

import numpy as np
import pytest
from scenes import PERFECT, configuration, environment, expert_episodes, successes

REST = np.zeros(7, np.float32)
OPEN, CLOSED = -1.0, 1.0


def run(env, gripper, steps, **columns):
    action = REST.copy()
    action[-1] = gripper
    for name, value in columns.items():
        action[env.schema.action_names.index(name)] = value
    return [env.step(action)[0] for _ in range(steps)]


def openings(observations):
    return [float(o["state/gripper_position"][0]) for o in observations]


def test_the_gripper_is_absolute_and_moves_at_the_speed_of_a_real_one():
    env = environment("pick_cube")
    first, _ = env.reset(seed=0)
    speed = 2 * configuration("task=pick_cube").robot.gripper.speed / 0.08 * env.clock.period
    closing = openings([first, *run(env, CLOSED, 12)])
    assert closing[0] == 0.0
    assert np.diff(closing).max() <= 1.1 * speed
    assert closing[3] > 2.5 * speed
    assert closing[-1] == pytest.approx(1.0, abs=0.01)
    assert openings(run(env, 0.0, 12))[-1] == pytest.approx(0.5, abs=0.02)
    assert openings(run(env, OPEN, 12))[-1] == pytest.approx(0.0, abs=0.01)


def held_cube(env, seed):
    """Put the TCP where the cube is and close the fingers."""
    env.reset(seed=seed)
    grasp = env.task.grasp_pose()
    env.robot.reset(grasp, np.random.default_rng(0))
    return run(env, CLOSED, 10)[-1]


def test_closed_fingers_hold_the_cube_and_say_how_wide_it_is():
    env = environment("pick_cube")
    seen = held_cube(env, 3)
    assert seen["state/gripper_position"][0] == pytest.approx(0.5, abs=0.02)
    before = env.task.cube_pose() - env.robot.world.tcp_pose()
    run(env, CLOSED, 6, z=1.0)
    held = run(env, CLOSED, 50)[-1]
    assert held["state/lift"][0] > 0.04
    slipped = env.task.cube_pose() - env.robot.world.tcp_pose() - before
    assert np.abs(slipped[:3]).max() < 0.0005  # in five seconds


def test_a_stop_keeps_what_is_held_and_a_delay_is_also_the_grippers():
    env = environment("pick_cube", "domain.action_delay=[0.2,0.2]")
    held_cube(env, 3)
    env.robot.hold()
    for _ in range(5):
        env.robot.advance(env.clock.period)
    assert env.robot.observe()["state/gripper_position"][0] == pytest.approx(0.5, abs=0.02)
    before, *after = openings(run(env, OPEN, 4))
    assert after[0] == pytest.approx(before, abs=1e-3)  # told, not yet done
    assert after[-1] < before - 0.05


def test_success_needs_the_height_and_the_hand():
    env = environment("pick_cube")
    height = configuration("task=pick_cube").task.environment.lift_height
    held_cube(env, 4)
    for _ in range(20):
        lifted = env.task.cube_pose()[2] - 0.02
        *_, info = env.step(np.array([0, 0, 1, 0, 0, 0, CLOSED], np.float32))
        if info["success"]:
            break
        assert lifted < height
    assert env.task.cube_pose()[2] - 0.02 >= height
    run(env, OPEN, 8)
    assert not env.task.succeeded()
    assert env.task.cube_pose()[2] == pytest.approx(0.02, abs=0.002)  # it has fallen


def test_the_cube_lies_still_until_it_is_touched():
    env = environment("pick_cube")
    env.reset(seed=1)
    first = env.task.cube_pose()
    run(env, OPEN, 20)
    np.testing.assert_allclose(env.task.cube_pose(), first, atol=2e-4)  # it sinks in a little


def test_scene_and_error_keep_their_ranges():
    settings = configuration("task=pick_cube").task.environment
    env = environment("pick_cube")
    shifts, errors = [], []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        cube = env.task.cube_pose()
        shifts.append(cube[:2] - [0.45, 0.0])
        errors.append(observation["state/object_poses"][0, :3] - cube[:3])
    for values, bound in ((shifts, settings.position_range), (errors, settings.position_noise)):
        assert np.abs(values).max() <= bound + 1e-6
        assert np.abs(values).max(axis=0).min() > 0.5 * bound


@pytest.mark.slow
def test_a_worse_expert_fails_more():
    worse = "task.expert.imperfections.offset=0.04"
    perfect = successes("pick_cube", 6, *PERFECT)
    assert perfect == 6
    assert successes("pick_cube", 6, worse) < successes("pick_cube", 6) <= perfect


def test_the_error_is_fixed_in_an_episode_and_follows_the_cube():
    _, steps = expert_episodes("pick_cube", 1, *PERFECT)[0]
    lifts = [float(s.observation["state/lift"][0]) for s in steps]
    assert abs(lifts[0]) <= 0.0041  # the error of the height
    assert lifts[-1] - lifts[0] == pytest.approx(0.1, abs=0.02)
