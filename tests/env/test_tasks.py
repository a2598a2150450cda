"""What holds for every registered task."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scenes import assert_identical, environment, expert_episodes, replay, successes

from policies.runner import Conclusion
from robot_rl.config import group_choices
from robot_rl.data.rows import RowBuilder
from robot_rl.safety import ActionRefused

# A task with the name of a robot comes with that robot; see test_gym.py.
TASKS = sorted(set(group_choices()["task"]) - set(group_choices()["robot"]))
EPISODES = 8
COLUMNS = ("x", "y", "z", "rotation_x", "rotation_y", "rotation_z", "gripper")


def random_actions(env, count, seed):
    width = env.schema.action_dimension
    return np.random.default_rng(seed).uniform(-1, 1, (count, width)).astype(np.float32)


pytestmark = pytest.mark.parametrize("task", TASKS)


def test_gymnasium_accepts_it(task):
    check_env(environment(task), skip_render_check=True)


def test_it_may_be_looked_at_before_its_first_episode(task):
    env = environment(task)
    assert env.observation_space.contains(env.observe())


def test_spaces_are_those_of_the_schema(task):
    env = environment(task)
    assert env.schema.task == task
    assert env.schema.control_rate_hz == 10.0
    names = env.schema.action_names
    assert names == tuple(name for name in COLUMNS if name in names)
    assert env.action_space.shape == (len(names),)
    assert env.action_space.dtype == np.float32
    assert set(env.observation_space.keys()) == set(env.schema.observation_names)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    for name, space in env.observation_space.items():
        column = env.schema.dtype[name]
        assert (space.dtype, space.shape) == (column.base, column.shape)


def test_the_seed_alone_decides_the_episode(task):
    used, fresh = environment(task), environment(task)
    actions = random_actions(used, 15, seed=0)
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
    rest = np.zeros(env.schema.action_dimension, np.float32)
    ends = [env.step(rest)[1:4] for _ in range(env.task.time_limit_steps)]
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
    conclusion = Conclusion(np.zeros((1, env.schema.action_dimension), np.float32), {})
    for first, steps in expert_episodes(task, EPISODES):
        for step in steps:
            assert np.abs(step.action).max() <= 1.0
            assert step.info["lateness"] == 0.0
            assert step.info["stamp_observation"] > step.info["stamp_action"]
        for observation, step in ((first, 0), (steps[-1].observation, len(steps))):
            env.schema.pack(builder.last(observation, 0, step, conclusion, 0))


def bad_actions(names):
    """Actions that must be refused, and what the refusal must name."""
    rest = np.zeros(len(names), np.float32)

    def with_last(value, dtype=np.float32):
        action = rest.astype(dtype)
        action[-1] = value
        return action

    last = repr(names[-1])
    return [
        (with_last(np.nan), last),
        (with_last(np.inf), last),
        (with_last(-1.01), last),
        (with_last(-128, np.int8), last),
        (np.append(rest, rest), f"({2 * len(names)},)"),
        (rest[None], f"(1, {len(names)})"),
        (rest.astype(str), "dtype"),
        (None, "dtype"),
        ([[0.0], [0.0, 0.0]], "no array"),
    ]


def test_a_bad_action_is_refused_and_nothing_moves(task):
    env = environment(task)
    actions = random_actions(env, 6, seed=1)
    expected, _ = replay(env, 7, actions)
    replay(env, 7, actions[:3])
    data, limiter = env.robot.world.data, env.robot.limiter

    def state():
        moving = (data.qpos, data.mocap_pos, data.mocap_quat, data.ctrl, limiter.target)
        return [data.time, *(values.tolist() for values in moving)]

    before = state()
    for action, named in bad_actions(env.schema.action_names):
        with pytest.raises(ActionRefused) as refusal:
            env.step(action)
        assert named in str(refusal.value)
        assert "got:" in str(refusal.value)
        assert "expected:" in str(refusal.value)
        assert state() == before
    rest = [env.step(action)[0] for action in actions[3:]]
    assert_identical(expected[4:], rest)
