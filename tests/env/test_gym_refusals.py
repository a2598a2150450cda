"""Gymnasium environments that cannot be used are refused, with what is wrong."""

import re

import gymnasium
import numpy as np
import pytest
from gym_points import Spaces, environment
from gymnasium import spaces

from robot_rl.cli import main
from robot_rl.config import ConfigError, compose
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.gym import GymError
from robot_rl.errors import RobotRLError

BOX = spaces.Box(0, 1, (2,))


@pytest.mark.parametrize(
    ("does", "named"),
    [
        ("ignores its seed", r"ignores its seed; got: another state/agent_place.*np_random"),
        ("changes its spaces", r"spaces of tests/Odd-v0 change"),
        ("sees NaN", r"state/goal of tests/Odd-v0, .* is not finite; got: \[nan\]"),
        ("sees too much", r"state/goal of tests/Odd-v0, .* is not what.*expected: numbers \(1,\)"),
        ("sees in floats", r"images/view of tests/Odd-v0, .* not what.*float64.*expected: uint8"),
        ("begins without info", r"reset of tests/Odd-v0 does not return what.*got: dict; expected"),
        ("begins with a list", r"reset of tests/Odd-v0 does not return what.*got: list; expected"),
        ("informs of nothing", r"step of .* does not return.*got: info NoneType; .*info a dict"),
        ("ends in words", r"terminated of .* is neither true nor false; got: 'no'"),
        ("loses its goal", r"state/goal of tests/Odd-v0, .* is not what.*KeyError"),
        ("rewards NaN", r"the reward of tests/Odd-v0, .* is no finite number; got: NaN"),
        ("rewards nothing", r"the reward of tests/Odd-v0, .* is no finite number; got: None"),
        ("rewards two", r"the reward of .* is no finite number; got: array\(\[0., 0.\]\)"),
        ("rewards in words", r"the reward of .* is no finite number; got: '1.0'"),
        ("has an old step", r"step of tests/Odd-v0, .* fails; got: Value.*expected 5, got 4.*\w+"),
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


def test_demonstrations_at_another_rate_say_how_to_take_them():
    old, now = (environment("tests/Passing-v0", *words) for words in (["control_rate_hz=10"], []))
    with pytest.raises(RobotRLError, match=r"got: 10\.0; expected: 2\.0.*control_rate_hz=10\.0"):
        now.schema.compare(old.schema)


@pytest.mark.parametrize("id", ["tests/NoEnv-v0", "tests/Wrapped-v0"])
def test_a_class_that_is_no_gymnasium_env_is_one_error(id):
    with pytest.raises(GymError, match=r"is no gymnasium\.Env, or wraps what is none.*NoEnv"):
        environment(id)


def test_an_environment_that_draws_nothing_says_so():
    env = environment("tests/Point-v0")
    env.reset(seed=0)
    with pytest.raises(GymError, match=r"cannot be filmed; got: render_mode None; .*rgb_array"):
        env.robot.picture()
    env = environment("tests/Drawn-v0", size="[4,4]")
    env.reset(seed=0)
    with pytest.raises(GymError, match=r"draws no RGB picture; got: uint8 \(4, 4\)"):
        env.robot.picture()


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


def test_unknown_arguments_are_one_error():
    with pytest.raises(GymError, match=r"does not take.*size.*robot\.arguments"):
        environment(size=3)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Discrete(4), "'observation'.*Discrete"),
        (spaces.MultiBinary(4), "'observation'.*MultiBinary"),
        (spaces.Tuple([spaces.Box(0, 1, (2,))]), "'observation'.*Tuple"),
        (spaces.Dict({"a": spaces.Text(3)}), "'a'.*Text"),
        (spaces.Dict({}), "of tests/Spaces-v0 is empty"),
        (
            spaces.Dict({"a": spaces.Dict({"b": BOX}), "a_b": BOX}),
            "2 columns of the name state/a_b",
        ),
        (spaces.Box(-1, 1, (96, 96, 3)), r"float32 \(96, 96, 3\) from -1 to 1"),
        (spaces.Box(-np.inf, np.inf, (3, 64, 64)), r"float32 \(3, 64, 64\) from -inf to inf"),
        (spaces.Box(0, 255, (4, 64, 64, 3), np.uint8), r"uint8 \(4, 64, 64, 3\)"),
        (spaces.Box(0, 1, (5, 64, 64)), r"float32 \(5, 64, 64\)"),
        (spaces.Box(0, 9000, (64, 64, 3), np.uint16), r"uint16 \(64, 64, 3\)"),
        (
            spaces.Dict({"depth": spaces.Box(0, 1, (64, 64, 1))}),
            "'depth'.*unit.*uint16 millimetres",
        ),
        (spaces.Box(0, 10, (64, 64)), r"float32 \(64, 64\) from 0 to 10"),
    ],
)
def test_an_observation_that_is_not_supported_is_named(space, named, monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", space)
    with pytest.raises(GymError, match=named) as problem:
        environment("tests/Spaces-v0")
    assert "expected:" in str(problem.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(-3.4e38, 3.4e38, (2,)),
        spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 1e9])),
        spaces.Box(-1, 1, (0,)),
    ],
)
def test_an_action_space_that_is_not_supported_is_named(space, monkeypatch):
    monkeypatch.setattr(Spaces, "action_space", space)
    with pytest.raises(
        GymError, match=r"action space.*expected: a Box with bounds, none of them beyond 1,000,000"
    ):
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


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (np.full((8, 9, 3), 0.5, np.float32), None),
        (np.full((8, 9, 3), 1.0001, np.float64), None),
        (np.full((8, 9, 3), 128.0, np.float32), r"outside its range \(got: 128 to 128, .*0 to 1\)"),
        (np.full((8, 9, 3), -0.5, np.float32), "outside its range"),
        (np.full((8, 9, 3), np.nan, np.float32), r"outside its range \(got: nan"),
        (np.full((9, 8, 3), 0.5, np.float32), r"not what was declared \(got: float32 \(9, 8, 3\)"),
    ],
)
def test_a_picture_that_is_not_what_its_space_says_is_refused(given, named, monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", spaces.Box(0, 1, (8, 9, 3)))
    env = environment("tests/Spaces-v0")
    monkeypatch.setattr(Spaces, "seen", given)
    if named is None:
        assert env.reset(seed=0)[0]["images/observation"].dtype == np.uint8
        return
    with pytest.raises(GymError, match=f"images/observation of tests/Spaces-v0, .*{named}"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("shape", "given", "named"),
    [
        ((2, 3), np.zeros((3, 2)), r"\(3, 2\).*expected: numbers \(2, 3\)"),
        ((2,), np.zeros((1, 2)), None),
        ((2,), np.zeros(2, complex), "complex128"),
        ((1,), "0.5", "<U3"),
        ((2,), [0.5, None], "object"),
        ((2,), np.full(2, 1e300), "not finite"),
    ],
)
def test_numbers_that_are_not_what_their_space_says_are_refused(shape, given, named, monkeypatch):
    monkeypatch.setattr(Spaces, "observation_space", spaces.Box(-1, 1, shape))
    env = environment("tests/Spaces-v0")
    monkeypatch.setattr(Spaces, "seen", given)
    if named is None:
        env.reset(seed=0)
        return
    with pytest.raises(GymError, match=f"state/observation of tests/Spaces-v0, .*{named}"):
        env.reset(seed=0)
