"""The peg and its socket: ranges, noise, geometry, and an expert with settable flaws."""

import numpy as np
import pytest
from scenes import PERFECT, configuration, environment, expert_episodes, successes
from scipy.spatial.transform import Rotation

from robot_rl.env.sim.tasks.peg_insert import (
    PEG_WIDTH,
    SOCKET_CENTRE,
    PegInsert,
)
from robot_rl.safety import rotations

SEEDS = range(40)
TASKS = ("peg_insert", "peg_insert_hard")


def yaw(pose):
    return Rotation.from_quat(pose[3:]).as_euler("ZYX")[0]


def test_the_issue_numbers_are_the_configured_ones():
    settings = configuration("task=peg_insert").task.environment
    assert settings.time_limit_steps == 100
    assert settings.clearance == 0.001
    assert settings.position_range == 0.05
    assert settings.yaw_range == pytest.approx(np.deg2rad(15))
    assert settings.position_noise == 0.003
    assert settings.yaw_noise == pytest.approx(np.deg2rad(2))
    assert settings.fine_scale == 0.004


def test_the_hard_task_is_a_configuration_of_the_same_class():
    easy, hard = (configuration(f"task={task}").task.environment for task in TASKS)
    differing = {key for key in easy if easy[key] != hard[key]}
    assert differing == {"name", "clearance", "position_noise"}
    assert (hard.clearance, hard.position_noise) == (0.0005, 0.004)
    assert type(environment("peg_insert_hard").task) is PegInsert


@pytest.mark.parametrize("task", TASKS)
def test_the_hole_is_wider_than_the_peg_by_the_clearance(task):
    env = environment(task)
    model = env.robot.world.model
    peg = model.geom("peg")
    np.testing.assert_allclose(2 * peg.size[:2], PEG_WIDTH)
    walls = {name: model.geom(f"socket_{name}") for name in ("front", "back", "left", "right")}
    for axis, low, high in ((0, "back", "front"), (1, "right", "left")):
        upper = walls[high].pos[axis] - walls[high].size[axis]
        lower = walls[low].pos[axis] + walls[low].size[axis]
        clearance = configuration(f"task={task}").task.environment.clearance
        assert upper - lower == pytest.approx(PEG_WIDTH + clearance, abs=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_scene_start_and_noise_keep_their_ranges_and_use_them(task):
    settings = configuration(f"task={task}").task.environment
    env = environment(task)
    shifts, yaws, errors, yaw_errors, starts = [], [], [], [], []
    for seed in SEEDS:
        observation, _ = env.reset(seed=seed)
        socket, seen = env.task.socket_pose(), observation["state/object_poses"][0]
        shifts.append(socket[:3] - SOCKET_CENTRE)
        yaws.append(yaw(socket))
        errors.append(seen[:3] - socket[:3])
        yaw_errors.append(yaw(seen) - yaw(socket))
        starts.append(env.task.tip_pose()[:3] - SOCKET_CENTRE - [0, 0, settings.start_height])
        np.testing.assert_allclose(observation["state/tcp_pose"][3:], [1, 0, 0, 0], atol=1e-4)
    assert np.all(np.array(shifts)[:, 2] == 0.0)
    for values, bound in (
        (np.array(shifts)[:, :2], settings.position_range),
        (np.array(yaws), settings.yaw_range),
        (np.array(errors), settings.position_noise),
        (np.array(yaw_errors), settings.yaw_noise),
        (np.array(starts), settings.start_noise),
    ):
        assert np.abs(values).max() <= bound + 2e-5  # tolerance of the start pose's joint angles
        assert np.all(values.max(axis=0) > 0.5 * bound)
        assert np.all(values.min(axis=0) < -0.5 * bound)


def test_the_observation_error_is_fixed_in_an_episode():
    for first, steps in expert_episodes("peg_insert", 6):
        poses = {s.observation["state/object_poses"].tobytes() for s in steps}
        assert poses == {first["state/object_poses"].tobytes()}


def test_the_relative_pose_is_the_tip_seen_from_the_socket_as_seen():
    env = environment("peg_insert")
    env.reset(seed=2)
    action = np.array([0.5, -0.3, -0.4, 0.6, -0.5, 0.8], np.float32)
    for _ in range(4):
        observation, *_ = env.step(action)
    tcp, seen = observation["state/tcp_pose"], observation["state/object_poses"][0]
    wrist, frame = Rotation.from_quat(tcp[3:]), Rotation.from_quat(seen[3:])
    tip = tcp[:3] + wrist.apply([0, 0, 0.055])
    expected = frame.inv().apply(tip - seen[:3])
    relative = observation["state/relative_pose"]
    np.testing.assert_allclose(relative[:3], expected, atol=2e-6)
    turn = frame.inv() * wrist * Rotation.from_quat([1, 0, 0, 0]).inv()
    np.testing.assert_allclose(relative[3:], turn.as_rotvec(), atol=1e-5)
    fine = observation["state/relative_position_fine"]
    np.testing.assert_allclose(fine, np.tanh(expected / 0.004), atol=1e-3)


def test_success_needs_depth_inside_the_true_hole():
    for _, steps in expert_episodes("peg_insert", 6, *PERFECT):
        assert steps[-1].terminated
    env = environment("peg_insert")
    env.reset(seed=0)
    down = np.array([0, 0, -1, 0, 0, 0], np.float32)
    for _ in range(40):  # beside the hole, onto the socket or the table
        _, reward, terminated, _, _ = env.step(down)
        assert (reward, terminated) == (0.0, False)


@pytest.mark.slow
def test_a_perfect_expert_hardly_fails_and_a_worse_one_fails_more():
    perfect = successes("peg_insert", 20, *PERFECT)
    worse = (
        "task.expert.imperfections.offset=0.012",
        "task.expert.imperfections.correction=1.0",
    )
    assert perfect >= 19
    assert successes("peg_insert", 20, *worse) < successes("peg_insert", 20) <= perfect


def test_a_slower_expert_takes_longer():
    def mean_length(*overrides):
        return np.mean([len(s) for _, s in expert_episodes("peg_insert", 6, *PERFECT, *overrides)])

    slow = ("task.expert.imperfections.speed_low=0.4", "task.expert.imperfections.speed_high=0.4")
    pauses = ("task.expert.imperfections.hesitation=0.2",)
    assert mean_length(*slow) > 1.3 * mean_length()
    assert mean_length(*pauses) > 1.3 * mean_length()


def test_the_peg_goes_in_where_the_goal_is():
    """The goal pose has the tip at the centre of the socket's upper face."""
    env = environment("peg_insert")
    env.reset(seed=5)
    goal, socket = env.task.goal_pose(), env.task.socket_pose()
    tip = goal[:3] + rotations.rotate(goal[3:], np.array([0.0, 0.0, 0.055]))
    np.testing.assert_allclose(tip, socket[:3], atol=1e-9)
