"""What holds for every registered task."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scenes import assert_identical, environment, expert_episodes, replay, successes

from policies.runner import Concluded
from robot_rl.config import group_choices
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SCHEMA_VERSION
from robot_rl.safety import ActionRefused

TASKS = group_choices()["task"]
EPISODES = 12
SIX = ("x", "y", "z", "rotation_x", "rotation_y", "rotation_z")

pytestmark = pytest.mark.parametrize("task", TASKS)


def test_gymnasium_accepts_it(task):
    check_env(environment(task), skip_render_check=True)


def test_spaces_are_those_of_the_schema(task):
    env = environment(task)
    assert (env.schema.task, env.schema.version) == (task, SCHEMA_VERSION)
    assert env.schema.control_rate_hz == 10.0
    assert env.schema.action_names == SIX
    assert env.action_space.shape == (6,)
    assert env.action_space.dtype == np.float32
    assert set(env.observation_space.keys()) == set(env.schema.observation_names)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    for name, space in env.observation_space.items():
        column = env.schema.dtype[name]
        assert (space.dtype, space.shape) == (column.base, column.shape)


def test_the_seed_alone_decides_the_episode(task):
    actions = np.random.default_rng(0).uniform(-1, 1, (15, 6)).astype(np.float32)
    used, fresh = environment(task), environment(task)
    observations, rewards = replay(used, 3, actions)
    for other in (4, 5):
        replay(used, other, -actions)
    for env in (used, fresh):
        again, again_rewards = replay(env, 3, actions)
        assert_identical(observations, again)
        assert rewards == again_rewards


def test_another_seed_is_another_scene(task):
    env = environment(task)
    scenes = {env.reset(seed=seed)[0]["state/object_poses"].tobytes() for seed in range(5)}
    assert len(scenes) == 5


def test_the_time_limit_truncates_and_does_not_terminate(task):
    env = environment(task)
    env.reset(seed=0)
    up = np.array([0, 0, 1, 0, 0, 0], np.float32)
    ends = [env.step(up)[1:4] for _ in range(env.task.time_limit_steps)]
    assert ends[:-1] == [(0.0, False, False)] * (env.task.time_limit_steps - 1)
    assert ends[-1] == (0.0, False, True)


def test_success_alone_is_rewarded_and_terminates(task):
    for _, steps in expert_episodes(task, EPISODES):
        *before, last = steps
        assert all(
            (s.reward, s.terminated, s.truncated, s.info["success"]) == (0.0, False, False, False)
            for s in before
        )
        assert last.terminated != last.truncated
        assert last.reward == float(last.terminated) == float(last.info["success"])


def test_success_at_the_time_limit_terminates_and_does_not_truncate(task):
    seed, steps = next(
        (seed, steps)
        for seed, (_, steps) in enumerate(expert_episodes(task, EPISODES))
        if steps[-1].terminated
    )
    for limit, end in ((len(steps), (1.0, True, False)), (len(steps) - 1, (0.0, False, True))):
        env = environment(task, f"task.environment.time_limit_steps={limit}")
        env.reset(seed=seed)
        ends = [env.step(step.action)[1:4] for step in steps[:limit]]
        assert ends == [(0.0, False, False)] * (limit - 1) + [end]


def test_the_expert_succeeds_in_a_good_share(task):
    assert successes(task, EPISODES) >= EPISODES / 2


def test_expert_episodes_stay_within_the_rules_of_the_rows(task):
    env = environment(task)
    builder = RowBuilder(env.schema, 0)
    conclusion = Concluded(np.zeros((1, env.schema.action_dimension), np.float32), {})
    for first, steps in expert_episodes(task, EPISODES):
        for step in steps:
            assert np.abs(step.action).max() <= 1.0
            assert step.info["lateness"] == 0.0
            assert step.info["stamp_observation"] > step.info["stamp_action"]
        for observation, step in ((first, 0), (steps[-1].observation, len(steps))):
            env.schema.pack(builder.last(observation, 0, step, conclusion, 0))


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (np.array([0, 0, np.nan, 0, 0, 0], np.float32), "'z'"),
        (np.array([0, np.inf, 0, 0, 0, 0], np.float32), "'y'"),
        (np.array([0, 0, 0, 0, -1.01, 0], np.float32), "'rotation_y'"),
        (np.array([-128, 0, 0, 0, 0, 0], np.int8), "'x'"),
        (np.zeros(4, np.float32), "(4,)"),
        (np.zeros((1, 6), np.float32), "(1, 6)"),
        (np.array(["0"] * 6), "dtype"),
        (None, "dtype"),
        ([[0.0], [0.0, 0.0]], "no array"),
    ],
)
def test_a_bad_action_is_refused_and_nothing_moves(task, action, named):
    env = environment(task)
    actions = np.random.default_rng(1).uniform(-1, 1, (6, 6)).astype(np.float32)
    expected, _ = replay(env, 7, actions)
    replay(env, 7, actions[:3])
    data, limiter = env.robot.world.data, env.robot.limiter
    before = [
        data.qpos.copy(),
        data.mocap_pos.copy(),
        data.mocap_quat.copy(),
        limiter.target.copy(),
    ]
    time = data.time
    with pytest.raises(ActionRefused) as refusal:
        env.step(action)
    assert named in str(refusal.value)
    assert "got:" in str(refusal.value)
    assert "expected:" in str(refusal.value)
    after = [data.qpos, data.mocap_pos, data.mocap_quat, limiter.target]
    assert time == data.time
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    rest = [env.step(action)[0] for action in actions[3:]]
    assert_identical(expected[4:], rest)
