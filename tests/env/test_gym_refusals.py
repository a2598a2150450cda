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
        ("has an old step", r"tests/Odd-v0 fails in its first steps; got: Value.*\.py:\d+, \w+"),
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
