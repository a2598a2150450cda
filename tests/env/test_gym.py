"""Gymnasium environments behind the seam of a robot."""

import numpy as np
import pytest
from gym_points import Balance, Spaces, environment, inner, tried
from gymnasium import spaces
from scenes import assert_identical, replay

from policies import places
from policies.behaviour import Behaviour, Interface
from policies.encoders import StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.networks import seeded
from robot_rl.commands.preparation import try_environment
from robot_rl.config import compose
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.gym import GymError
from robot_rl.env.rollout import rollout
from robot_rl.env.session import Session


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


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 1, (96, 90, 3), np.float32), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 255, (96, 90, 3), np.float64), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 1, (3, 96, 90), np.float32), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 255, (3, 96, 90), np.uint8), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 255, (96, 90), np.uint8), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 1, (1, 96, 90), np.float32), ("uint8", (96, 90, 3))),
        (spaces.Box(0, 255, (40, 40, 3), np.int64), ("uint8", (40, 40, 3))),
        (spaces.Box(0, 9000, (96, 90), np.uint16), ("uint16", (96, 90, 1))),
        (spaces.Box(0, 9000, (96, 90, 1), np.uint16), ("uint16", (96, 90, 1))),
        (spaces.Box(0, 9000, (1, 96, 90), np.uint16), ("uint16", (96, 90, 1))),
    ],
)
def test_pictures_of_all_kinds_become_rgb_or_depth(space, expected, monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", space)
    env = environment("tests/Spaces-v0")
    seen = env.reset(seed=0)[0]["images/observation"]
    assert env.observation_space["images/observation"].contains(seen)
    assert (seen.dtype, seen.shape) == expected
    given = inner(env).observation_space.sample()  # what a robot's step sees next
    assert not any(name.startswith("state/") for name in env.schema.observation_names)
    monkeypatch.setattr(Spaces, "seen", given)
    seen = env.reset(seed=0)[0]["images/observation"]
    value = given.astype(float) * (255 if space.high.max() == 1 else 1)
    value = value[..., None] if value.ndim == 2 else value
    value = np.moveaxis(value, 0, -1) if value.shape[0] in (1, 3) else value
    np.testing.assert_allclose(seen, np.broadcast_to(value, seen.shape), atol=0.51)


def test_rgba_is_rgb_where_it_is_opaque_and_a_stack_of_four_is_refused(monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", spaces.Box(0, 255, (9, 8, 4), np.uint8))
    env = environment("tests/Spaces-v0")
    opaque = np.dstack(
        [np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3), np.full((9, 8), 255)]
    )
    monkeypatch.setattr(Spaces, "seen", opaque.astype(np.uint8))
    np.testing.assert_array_equal(env.reset(seed=0)[0]["images/observation"], opaque[..., :3])
    monkeypatch.setattr(Spaces, "seen", np.zeros((9, 8, 4), np.uint8))
    with pytest.raises(GymError, match=r"fourth channel .* not opaque.*stack"):
        env.reset(seed=0)


def test_small_arrays_and_flat_rows_are_numbers(monkeypatch):
    shapes = [(4, 3, 3), (6, 13), (27648,), (), (10, 20)]
    parts = {f"part{i}": spaces.Box(-1, 1, shape) for i, shape in enumerate(shapes)}
    monkeypatch.setattr(Spaces, "observation_space", spaces.Dict(parts))
    env = environment("tests/Spaces-v0")
    seen, _ = env.reset(seed=0)
    assert [seen[f"state/part{i}"].size for i in range(5)] == [36, 78, 27648, 1, 200]


@pytest.mark.parametrize("given", [[1.0], np.array(1.0), np.float32(1.0), np.array([[1]]), True])
def test_a_reward_may_be_any_one_number(given, monkeypatch):
    env = environment("tests/Balance-v0")
    env.reset(seed=0)
    step = Balance.step

    def rewarded(self, action):
        seen, _, *rest = step(self, action)
        return seen, given, *rest

    monkeypatch.setattr(Balance, "step", rewarded)
    assert env.step(np.zeros(1, np.float32))[1] == 1.0


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


def episode(env, action, seed=0):
    env.reset(seed=seed)
    while True:
        _, reward, terminated, truncated, info = env.step(np.array(action, np.float32))
        if terminated or truncated:
            return reward, terminated, truncated, info["success"]


@pytest.mark.parametrize(
    ("key", "success"),
    [("is_success", "last"), ("success", "last"), ("succeed", "any"), ("null", "rewarded")],
)
def test_reward_termination_and_success_are_the_environments(key, success):
    env = environment("tests/Point-v0", f"robot.success={success}", key=key)
    assert episode(env, [-1, 0]) == (1.0, True, False, True)
    assert episode(env, [1, 0]) == (-2.0, True, False, False)  # it ends and has failed
    assert episode(env, [0, 0]) == (0.0, False, True, False)


def test_what_makes_a_success_can_be_named():
    def ends(success, action):
        return episode(
            environment("tests/Point-v0", f"robot.success={success}", key="done"), action
        )

    assert ends("done", [-1, 0])[3]
    assert ends("any done", [-1, 0])[3]
    assert ends("terminated", [1, 0])[2:] == (False, True)  # it has failed, and terminated
    assert not ends("none", [-1, 0])[3]
    assert not ends("last", [-1, 0])[3]  # nothing says that it is a success
    with pytest.raises(
        GymError, match=r"no 'won'; got: \['done'\]; next: set robot.success to one"
    ):
        ends("won", [-1, 0])
    with pytest.raises(GymError, match=r"robot\.success cannot be read; got: 'won it'"):
        ends("won it", [-1, 0])


@pytest.mark.parametrize("key", ["success", None])
def test_a_reward_of_each_step_makes_no_fall_a_success(key, capsys):
    config = tried("tests/Balance-v0", f"+robot.arguments.key={key or 'null'}")
    said = capsys.readouterr().out
    env = make_env(config)
    falls = [episode(env, [1.0], seed)[3] for seed in range(20)]
    assert not any(falls)
    if key is None:
        assert "success: unknown, so no episode counts as one" in said
        assert "robot.success=KEY" in said
        assert config.robot.success == "none"
    else:  # which is in the info of an end alone, as False
        assert "info['success']" in said


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
    assert tried("Pendulum-v1").robot.success == "rewarded"
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
    first, again = rollout([Session(env)], ExpertController(Resting()), iter([0, 1]))
    assert (first.success, first.seconds_to_success) == expected
    assert (again.success, again.seconds_to_success) == expected
    assert first.seconds == 4.0


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


def test_closing_closes_the_environment():
    env = environment()
    env.close()
    assert inner(env).closed


def test_an_environment_in_a_folder_of_the_users_own_is_found(tmp_path, monkeypatch):
    (tmp_path / "lab_points.py").write_text(
        "import gymnasium\ngymnasium.register('Lab-v0', 'gym_points:Point', max_episode_steps=9)\n"
    )
    monkeypatch.setenv(places.PATH_VARIABLE, str(tmp_path))
    assert environment("lab_points:Lab-v0").task.time_limit_steps == 9


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
