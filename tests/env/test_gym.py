"""Gymnasium environments behind the seam of a robot."""

import re
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
from robot_rl.cli import main
from robot_rl.commands.preparation import try_environment
from robot_rl.config import ConfigError, compose
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.gym import GymError
from robot_rl.env.rollout import rollout
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


class Odd(Point):
    """Does one thing that nothing can be learned from."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=None if self.does == "ignores its seed" else seed)
        if self.does == "changes its spaces":
            goal = spaces.Box(-9, 9, (2,), np.float32)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "goal": goal})
        return seen, info

    def step(self, action):
        seen, reward, *rest = super().step(action)
        if self.does == "sees NaN" or (self.does == "sees NaN later" and self.place.max() > 3):
            seen["goal"] = np.full(1, np.nan, np.float32)
        elif self.does == "sees too much":
            seen["goal"] = np.zeros(2, np.float32)
        elif self.does == "sees in floats":
            seen["view"] = seen["view"] / 255.0
        elif self.does == "loses its goal":
            del seen["goal"]
        elif self.does == "rewards NaN":
            reward = np.nan
        elif self.does == "rewards nothing":
            reward = None
        elif self.does == "has an old step":
            return seen, reward, False, {}
        return seen, reward, *rest


class Unseeded(Point):
    """Moves on its own, by a source that no seed reaches."""

    source = np.random.default_rng(0)

    def step(self, action):
        self.place = self.place + 0.01 * self.source.standard_normal()
        return super().step(action)


class Passing(gymnasium.Env):
    """Is at its goal in steps 3, 4 and 7 of 8, which end nothing; its steps take 0.5 s."""

    metadata: typing.ClassVar = {"render_modes": [], "render_fps": 30}
    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Box(-1, 1, (1,))
    dt = 0.5

    def __init__(self, stays=False):
        self.stays = stays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        reached = self.count in (3, 4, 7) or (self.stays and self.count > 5)
        return np.full(1, self.count, np.float32), 0.0, False, False, {"success": reached}


class NoEnv:
    """Has spaces, but is none of Gymnasium's."""

    observation_space, action_space = Passing.observation_space, Passing.action_space


class Spaces(gymnasium.Env):
    """Has the spaces that a test gives it."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))


gymnasium.register("tests/Point-v0", Point, max_episode_steps=20)
gymnasium.register("tests/Drawn-v0", Drawn, max_episode_steps=20)
gymnasium.register("tests/Spaces-v0", Spaces, max_episode_steps=20)
gymnasium.register("tests/Endless-v0", Point)
gymnasium.register("tests/Odd-v0", Odd, max_episode_steps=20)
gymnasium.register("tests/Unseeded-v0", Unseeded, max_episode_steps=20)
gymnasium.register("tests/Passing-v0", Passing, max_episode_steps=8)
gymnasium.register("tests/NoEnv-v0", NoEnv)
gymnasium.register("tests/Wrapped-v0", lambda: gymnasium.Wrapper(NoEnv()))


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


@pytest.mark.parametrize(("word", "sum_wanted"), [("", -0.5), ("time_limit_steps=3", 0.0)])
def test_success_can_be_a_sum_of_rewards_at_the_end(word, sum_wanted, capsys):
    shorter = [f"task.environment.{word}"] if word else []
    words = ("tests/Point-v0", f"robot.success_return={sum_wanted}", *shorter)
    env = environment(*words, key="null")
    assert episode(env, [0, 0])[3]
    assert not episode(env, [1, 0])[3]
    env.reset(seed=0)
    assert not env.step(np.zeros(2, np.float32))[4]["success"]  # what will come is not known yet
    try_environment(compose(["robot=gym", *(f"robot.id={w}" if "/" in w else w for w in words)]))
    assert f"success: rewards that sum to {sum_wanted:g} or more" in capsys.readouterr().out


def test_the_time_limit_is_the_environments_or_a_shorter_one():
    assert environment().task.time_limit_steps == 20
    env = environment("tests/Point-v0", "task.environment.time_limit_steps=3")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(GymError, match=r"no time limit.*task\.environment\.time_limit_steps"):
        environment("tests/Endless-v0")


def tried(id, *overrides):
    config = compose(["robot=gym", f"robot.id={id}", *overrides])
    try_environment(config)
    return config


@pytest.mark.parametrize(
    ("does", "named"),
    [
        ("ignores its seed", r"ignores its seed; got: another state/agent_place.*np_random"),
        ("changes its spaces", r"spaces of tests/Odd-v0 change"),
        ("sees NaN", r"state/goal of tests/Odd-v0, .* is not finite; got: \[nan\]"),
        ("sees too much", r"state/goal of tests/Odd-v0, .* is not what.*expected: float32 \(1,\)"),
        ("sees in floats", r"images/view of tests/Odd-v0, .* not what.*float64.*expected: uint8"),
        ("loses its goal", r"state/goal of tests/Odd-v0, .* is not what.*KeyError"),
        ("rewards NaN", r"the reward of tests/Odd-v0, .* is no finite number; got: nan"),
        ("rewards nothing", r"the reward of tests/Odd-v0, .* is no finite number; got: None"),
        ("has an old step", r"tests/Odd-v0 fails in its first steps; got: ValueError"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_before_a_run_is_made(
    does, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["robot=gym", "robot.id=tests/Odd-v0", f"+robot.arguments.does='{does}'"]
    assert main(["collect", *words]) == 2
    assert re.search(named, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_late_is_named_with_the_seed_and_the_step_that_repeat_it():
    env = environment("tests/Odd-v0", "+robot.arguments.does='sees NaN later'")
    env.reset(seed=0)
    env.reset(seed=1)
    with pytest.raises(GymError, match="is not finite") as caught:
        any(env.step(np.full(2, 0.1, np.float32))[2] for _ in range(20))
    named = re.search(r"in step (\d+) after reset\(seed=(\d+)\)", str(caught.value))
    alone = gymnasium.make("tests/Odd-v0", does="sees NaN later").unwrapped
    alone.reset(seed=int(named[2]))
    # 0.1 of the range of each column.
    goals = [alone.step(np.array([0.2, 5.5]))[0]["goal"] for _ in range(int(named[1]))]
    assert len(goals) > 1
    assert np.isfinite(goals[:-1]).all()
    assert np.isnan(goals[-1])


def test_what_follows_from_an_environment_is_said(capsys):
    tried("tests/Passing-v0")
    assert capsys.readouterr().out.splitlines() == [
        "tests/Passing-v0: at most 8 steps of 0.5 s (dt); reward 0 to 0 in 3 random steps",
        "    success: info['success'] at the last step (robot.success=any: any step);"
        " it ends no episode: each lasts to its limit",
        "    all seeds begin alike",
    ]
    tried("Pendulum-v1")
    said = capsys.readouterr().out
    assert "Pendulum-v1: at most 200 steps of 0.05 s (dt); reward -" in said
    assert "in 200 random steps\n    success: termination with a positive reward," in said
    tried("tests/Point-v0", "+robot.arguments.draw_globally=true")  # which is seeded too
    assert "tests/Point-v0: at most 20 steps of 0.1 s (it does not" in capsys.readouterr().out
    tried("tests/Unseeded-v0")
    assert "no run can be repeated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("id", "rate"),
    [("tests/Passing-v0", 2.0), ("MountainCarContinuous-v0", 30.0), ("tests/Point-v0", 10.0)],
)
def test_the_rate_is_the_environments_or_one_that_is_given(id, rate):
    assert make_env(tried(id)).schema.control_rate_hz == tried(id).control_rate_hz == rate
    assert environment(id).schema.control_rate_hz == rate
    assert environment(id, "control_rate_hz=4").schema.control_rate_hz == 4.0


def test_demonstrations_at_another_rate_say_how_to_take_them():
    old, now = (environment("tests/Passing-v0", *words) for words in (["control_rate_hz=10"], []))
    with pytest.raises(RobotRLError, match=r"got: 10\.0; expected: 2\.0.*control_rate_hz=10\.0"):
        now.schema.compare(old.schema)


class Resting:
    def reset(self, rng):
        pass

    def act(self, rng):
        return np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("success", "stays", "expected"),
    [
        ("last", False, (False, 0.0)),
        ("last", True, (True, 3.0)),  # since step 6
        ("any", False, (True, 1.5)),
        ("any", True, (True, 1.5)),
    ],
)
def test_success_is_that_of_the_last_step_or_of_any_and_counted_from_there(
    success, stays, expected
):
    env = environment("tests/Passing-v0", f"robot.success={success}", stays=stays)
    first, again = rollout([env], ExpertController(Resting()), iter([0, 1]))
    assert (first.success, first.seconds_to_success) == expected
    assert (again.success, again.seconds_to_success) == expected
    assert first.seconds == 4.0
    with pytest.raises(GymError, match=r"robot\.success is unknown; got: first; .*last or any"):
        environment("tests/Passing-v0", "robot.success=first")


@pytest.mark.parametrize("id", ["tests/NoEnv-v0", "tests/Wrapped-v0"])
def test_a_class_that_is_no_gymnasium_env_is_one_error(id):
    with pytest.raises(GymError, match=r"is no gymnasium\.Env, or wraps what is none.*NoEnv"):
        environment(id)


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
