"""Gymnasium environments behind the seam of a robot."""

import typing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scenes import assert_identical, replay

from policies import registry
from policies.behaviour import Behaviour, Interface
from policies.encoders import StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.networks import seeded
from robot_rl.config import ConfigError, compose
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.gym import GymError
from robot_rl.errors import RobotRLError


class Point(gymnasium.Env):
    """Bring a point to 0; reward and ends are its own."""

    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
    observation_space = spaces.Dict(
        {
            "agent": spaces.Dict({"place": spaces.Box(-9, 9, (2, 1), np.float64)}),
            "goal": spaces.Box(-9, 9, (1,), np.float32),
            "view": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        }
    )

    def __init__(self, key="is_success", draw_globally=False):
        self.key = key
        self.draw_globally = draw_globally
        self.actions = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        source = np.random if self.draw_globally else self.np_random
        self.place = source.uniform(1.0, 2.0, (2, 1))
        return self._seen(), {}

    def step(self, action):
        self.actions.append(action)
        self.place = self.place + action[0]
        reached, lost = bool((self.place < 0).all()), bool((self.place > 5).any())
        info = {} if self.key is None else {self.key: reached}
        return self._seen(), float(reached) - 2.0 * lost, reached or lost, False, info

    def close(self):
        self.closed = True

    def _seen(self):
        view = np.full((4, 5, 3), int(10 * abs(self.place[0, 0])), np.uint8)
        goal = np.zeros(1, np.float32)
        return {"agent": {"place": self.place}, "goal": goal, "view": view}


class Drawn(Point):
    """Draws where its point is, in a picture of odd sides."""

    metadata: typing.ClassVar = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode=None, size=(37, 51, 3)):
        super().__init__()
        self.render_mode, self.size = render_mode, size

    def render(self):
        return np.full(self.size, int(10 * abs(self.place[0, 0])), np.uint8)


class Spaces(gymnasium.Env):
    """Has the spaces that a test gives it."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))


gymnasium.register("tests/Point-v0", Point, max_episode_steps=20)
gymnasium.register("tests/Drawn-v0", Drawn, max_episode_steps=20)
gymnasium.register("tests/Spaces-v0", Spaces, max_episode_steps=20)
gymnasium.register("tests/Endless-v0", Point)


def environment(id="tests/Point-v0", *overrides, **arguments):
    given = [f"+robot.arguments.{name}={value}" for name, value in arguments.items()]
    return make_env(compose(["robot=gym", f"robot.id={id}", *overrides, *given]))


def inner(env):
    return env.robot._env.unwrapped


def test_robot_gym_brings_its_task_and_is_called_by_its_id():
    config = compose(["robot=gym", "robot.id=tests/Point-v0"])
    assert config.choices.task == "gym"
    assert make_env(config).schema.task == config.task.name == "tests/Point-v0"


def test_observations_become_flat_columns_and_images_stay():
    env = environment()
    names = ("last_command", "state/agent_place", "state/goal", "images/view")
    assert env.schema.observation_names == names
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    place = inner(env).place
    np.testing.assert_allclose(observation["state/agent_place"], place.ravel(), rtol=1e-6)
    assert (observation["images/view"] == int(10 * place[0, 0])).all()


def test_a_single_box_is_called_observation():
    names = environment("Pendulum-v1").schema.observation_names
    assert names == ("last_command", "state/observation")


def test_actions_are_scaled_to_the_bounds():
    env = environment()
    env.reset(seed=0)
    for action in ([-1, -1], [0, 0], [0.5, 1]):
        env.step(np.array(action, np.float32))
    np.testing.assert_allclose(inner(env).actions, [[-2, 0], [0, 5], [1, 10]])


def test_a_scale_narrows_the_range_and_leaves_columns_out():
    env = environment("tests/Point-v0", "robot.action_scale=[0.5,0.0]")
    assert env.schema.action_names == ("action_0",)
    env.reset(seed=0)
    env.step(np.array([-1], np.float32))
    np.testing.assert_allclose(inner(env).actions, [[-1, 5]])


@pytest.mark.parametrize("draw_globally", [False, True])
def test_the_seed_alone_decides_the_episode(draw_globally):
    env = environment(draw_globally=draw_globally)
    actions = np.random.default_rng(0).uniform(-0.2, 0.2, (6, 2)).astype(np.float32)
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    first, _ = replay(env, 3, actions)
    other, _ = replay(env, 4, actions)
    again, _ = replay(env, 3, actions)
    assert_identical(first, again)
    assert first[0]["state/agent_place"].tolist() != other[0]["state/agent_place"].tolist()
    assert np.random.random() == expected  # the generator of others is left as it was


def episode(env, action):
    env.reset(seed=0)
    while True:
        _, reward, terminated, truncated, info = env.step(np.array(action, np.float32))
        if terminated or truncated:
            return reward, terminated, truncated, info["success"]


@pytest.mark.parametrize("key", ["is_success", "success", "succeed", "null"])
def test_reward_termination_and_success_are_the_environments(key):
    env = environment(key=key)
    assert episode(env, [-1, 0]) == (1.0, True, False, True)
    assert episode(env, [1, 0]) == (-2.0, True, False, False)  # it ends and has failed
    assert episode(env, [0, 0]) == (0.0, False, True, False)


def test_the_success_key_can_be_named():
    assert episode(environment("tests/Point-v0", "robot.success_key=done", key="done"), [-1, 0])[3]
    with pytest.raises(GymError, match=r"no 'done'.*is_success"):
        episode(environment("tests/Point-v0", "robot.success_key=done"), [-1, 0])


def test_the_time_limit_is_the_environments_or_a_shorter_one():
    assert environment().task.time_limit_steps == 20
    env = environment("tests/Point-v0", "task.environment.time_limit_steps=3")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(GymError, match=r"no time limit.*task\.environment\.time_limit_steps"):
        environment("tests/Endless-v0")


def test_an_environment_that_draws_itself_is_filmed(tmp_path):
    av = pytest.importorskip("av")
    from robot_rl.evaluation.videos import film

    env = environment("tests/Drawn-v0")
    env.reset(seed=0)
    assert env.robot.picture().shape == (36, 50, 3)
    assert env.robot.picture()[0, 0, 0] == int(10 * abs(inner(env).place[0, 0]))
    encoder = StateEncoder({"state/goal": 1})
    actor = GaussianTanh(1, 2, [4], generator=seeded(0))
    interface = Interface("tests/Drawn-v0", 10.0, env.schema.action_names)
    (clip,) = film(env, Behaviour(GaussianPolicy(encoder, actor), interface), [3], tmp_path)
    with av.open(str(tmp_path / clip.file)) as film_file:
        frames = sum(1 for _ in film_file.decode(video=0))
    assert frames >= clip.seconds * 10 > 0


def test_an_environment_that_draws_nothing_says_so():
    env = environment("tests/Point-v0")
    env.reset(seed=0)
    with pytest.raises(GymError, match=r"cannot be filmed; got: render_mode None; .*rgb_array"):
        env.robot.picture()
    env = environment("tests/Drawn-v0", size="[4,4]")
    env.reset(seed=0)
    with pytest.raises(GymError, match=r"draws no RGB picture; got: uint8 \(4, 4\)"):
        env.robot.picture()


def test_closing_closes_the_environment():
    env = environment()
    env.close()
    assert inner(env).closed


@pytest.mark.parametrize(
    ("id", "named"),
    [
        ("tests/Pont-v0", "no environment 'tests/Pont-v0'"),
        ("Nothing-v3", "no environment 'Nothing-v3'"),
        ("no_such_package/Pick-v0", "cannot be imported.*no_such_package"),
        ("no_such_module:Pick-v0", "cannot be imported.*no_such_module"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_error(id, named):
    with pytest.raises(GymError, match=named):
        environment(id)


def test_an_environment_in_a_folder_of_the_users_own_is_found(tmp_path, monkeypatch):
    (tmp_path / "lab_points.py").write_text(
        "import gymnasium\ngymnasium.register('Lab-v0', 'test_gym:Point', max_episode_steps=9)\n"
    )
    monkeypatch.setenv(registry.PATH_VARIABLE, str(tmp_path))
    assert environment("lab_points:Lab-v0").task.time_limit_steps == 9


def test_unknown_arguments_are_one_error():
    with pytest.raises(GymError, match=r"does not take.*size.*robot\.arguments"):
        environment(size=3)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Discrete(4), "'observation'.*Discrete"),
        (spaces.Dict({"a": spaces.Text(3)}), "'a'.*Text"),
        (spaces.Box(0, 255, (8, 8, 1), np.uint8), "'observation'.*8, 8, 1"),
    ],
)
def test_an_observation_that_is_not_supported_is_named(space, named, monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", space)
    with pytest.raises(GymError, match=named) as problem:
        environment("tests/Spaces-v0")
    assert "expected:" in str(problem.value)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (2,))])
def test_an_action_space_that_is_not_supported_is_named(space, monkeypatch):
    monkeypatch.setattr(Spaces, "action_space", space)
    with pytest.raises(GymError, match=r"action space.*expected: a Box with finite bounds"):
        environment("tests/Spaces-v0")


@pytest.mark.parametrize("scale", ["[0.5]", "[0.5,2.0]", "[0.0,0.0]"])
def test_a_scale_that_does_not_fit_says_what_would(scale):
    with pytest.raises(GymError, match="2 numbers in"):
        environment("tests/Point-v0", f"robot.action_scale={scale}")


def test_a_task_for_another_robot_says_so():
    with pytest.raises(ConfigError, match="task=reach is for another robot than robot=gym"):
        compose(["robot=gym", "task=reach"])
    with pytest.raises(RobotRLError, match=r"simulated arm cannot do.*robot=gym"):
        make_env(compose(["task=gym"]))


def test_gym_refuses_a_simulated_task():
    simulated, robot = compose(["task=reach"]), compose(["robot=gym"]).robot
    with pytest.raises(GymError, match=r"cannot do the task 'reach'.*task=gym"):
        make_env({**simulated, "robot": robot})


def test_without_an_expert_collect_says_what_to_do():
    config = compose(["robot=gym", "robot.id=tests/Point-v0"])
    with pytest.raises(RobotRLError, match=r"no scripted expert.*dataset=PATH"):
        make_expert(config, make_env(config))


def installed(module):
    return pytest.importorskip(module, reason=f"{module}: pip install robot_rl[gym]")


def test_gym_hil_is_seeded_and_its_expert_picks_up_the_cube():
    installed("gym_hil")
    config = compose(["robot=gym_hil"])
    env = make_env(config)
    assert env.schema.task == "gym_hil/PandaPickCubeBase-v0"
    states = ("state/agent_pos", "state/environment_state")
    assert env.schema.observation_names == ("last_command", *states)
    assert env.schema.action_dimension == 4
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
    first, _ = replay(env, 3, actions)
    other, _ = replay(env, 4, actions)
    assert_identical(first, replay(env, 3, actions)[0])
    cubes = [seen[0]["state/environment_state"].tolist() for seen in (first, other)]
    assert cubes[0] != cubes[1]
    expert = make_expert(config, env)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    expert.reset(rng)
    over = False
    while not over:
        _, reward, terminated, truncated, info = env.step(expert.act(rng))
        over = terminated or truncated
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_gymnasium_robotics_runs_with_its_goals_and_its_own_reward():
    installed("gymnasium_robotics")
    env = environment("gymnasium_robotics:FetchReach-v4")
    assert env.schema.observation_names == (
        "last_command",
        "state/achieved_goal",
        "state/desired_goal",
        "state/observation",
    )
    observation, _ = env.reset(seed=0)
    success, steps, over = False, 0, False
    while not over:  # go to the goal, 5 cm a step at most
        way = observation["state/desired_goal"] - observation["state/achieved_goal"]
        action = np.array([*np.clip(way / 0.05, -1, 1), 0.0], np.float32)
        observation, reward, terminated, over, info = env.step(action)
        assert reward == (0.0 if info["success"] else -1.0)
        assert not terminated
        success, steps = info["success"], steps + 1
    assert success
    assert steps == 50  # its own time limit
    env.close()
