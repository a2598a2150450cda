"""The Python interface: what its page shows runs as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tiny_runs import TINY

import robot_rl
from robot_rl import cli
from robot_rl.commands.inspection import describe
from robot_rl.config import compose, group_choices
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.evaluation.evaluator import conditions
from robot_rl.evaluation.statistics import EvaluationResult


def evaluated(path, *won, first_seed=0, words=()):
    result = EvaluationResult.of_episodes(
        np.array(won, bool),
        np.ones(len(won)),
        policy="residual",
        seed_set="final",
        first_seed=first_seed,
        environment_steps=100,
        gradient_updates=10,
        wall_seconds=1.0,
        **conditions(compose(words)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result.to_json()) + "\n")
    return path


@pytest.fixture
def page(checkout):
    return (checkout / "docs/api.md").read_text()


def test_the_page_runs(page, cloned, tmp_path, monkeypatch, capsys):
    shutil.copytree(cloned / "runs", tmp_path / "runs", symlinks=True)
    for name, won in (("first", [1, 0, 1, 0]), ("second", [1, 1, 1, 1])):
        evaluated(tmp_path / f"runs/{name}/evaluations.jsonl", *won)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/api.md", "exec"), names)
    printed = capsys.readouterr().out
    assert names["info"]["success"] in (True, False)
    assert names["policy"].task == "reach"
    assert "(32, 2) (32, 2)" in printed
    assert "98.5 % [95.7, 99.7]" in printed
    assert printed.splitlines()[-1] == "2 0 0.25"


def test_the_page_lists_every_name(page):
    listed = set(re.findall(r"`(?:robot_rl\.)?(\w+)`", page.partition("## Environments")[0]))
    assert set(robot_rl.__all__) <= listed
    assert all(hasattr(robot_rl, name) for name in robot_rl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'learner_of_mine'"):
        _ = robot_rl.learner_of_mine


def test_every_simulated_task_has_an_id():
    ids = {spec.id: spec for spec in gymnasium.registry.values() if spec.namespace == "robot_rl"}
    tasks = set(group_choices()["task"]) - {"gym", "gym_hil"}
    assert {spec.kwargs["task"] for spec in ids.values()} == tasks
    assert "robot_rl/PegInsert-v0" in ids


@pytest.mark.parametrize("order", ["import robot_rl, gymnasium", "import gymnasium, robot_rl"])
def test_ids_are_there_whichever_is_imported_first(order, tmp_path):
    code = f"{order}; print('robot_rl/PegInsert-v0' in gymnasium.registry)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.filterwarnings("ignore:.*Box observation space:UserWarning")
def test_an_environment_is_what_gymnasium_expects():
    env = gymnasium.make("robot_rl/Reach-v0", overrides=["task.environment.time_limit_steps=3"])
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    ends = [env.step(np.zeros(6, np.float32))[3] for _ in range(3)]
    assert ends == [False, False, True]
    env.close()


def test_wrong_requests_are_answered_with_what_is_valid(tmp_path, cloned, monkeypatch):
    monkeypatch.chdir(cloned)
    with pytest.raises(robot_rl.RobotRLError, match=r"no such policy; got: best; .*deployed"):
        robot_rl.load_policy("latest", "best")
    with pytest.raises(robot_rl.RobotRLError, match="there is no run 'nothing'"):
        robot_rl.load_policy("nothing")
    policy = robot_rl.load_policy("runs/latest/checkpoints/bc")
    env = gymnasium.make("robot_rl/PegInsert-v0")
    with pytest.raises(robot_rl.RobotRLError, match=r"task differs; got: reach; expected: peg_in"):
        robot_rl.load_policy("runs/latest/checkpoints/bc", env=env)
    env.close()
    pendulum = gymnasium.make("Pendulum-v1")  # not one of robot_rl
    with pytest.raises(robot_rl.RobotRLError, match="leave env out, and give act a dict"):
        robot_rl.load_policy("runs/latest/checkpoints/bc", env=pendulum)
    with pytest.raises(robot_rl.RobotRLError, match=r"call reset\(seed=\.\.\.\)"):
        policy.act({})
    policy.reset()
    with pytest.raises(robot_rl.RobotRLError, match="got: ndarray; expected: a dict with state/"):
        policy.act(np.zeros(7))
    with pytest.raises(robot_rl.RobotRLError, match="lacks"):
        policy.act({"state/tcp_pose": np.zeros(7)})
    with pytest.raises(robot_rl.RobotRLError, match="a policy holds no episodes"):
        next(robot_rl.read_episodes("runs/latest/checkpoints/bc"))
    with pytest.raises(robot_rl.RobotRLError, match="impossible counts; got: 3 of 2"):
        robot_rl.exact_interval(3, 2)


def test_the_first_episodes_of_a_run_are_read_wherever_they_are(cloned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = (cloned / "runs/latest/demonstrations.zarr").resolve()
    assert cli.main(["pretrain", *TINY, "cloning.updates=1", f"dataset={dataset}"]) == 0
    assert [e.success for e in robot_rl.read_episodes("runs/latest")] == [True] * 4

    alone = ("demonstrations=0", "algorithm=sac", "reward=distance", "stage=explore")
    assert cli.main(["train", *TINY, *alone]) == 0
    episodes = list(robot_rl.read_episodes("runs/latest"))
    assert sum(len(e.rows) - 1 for e in episodes) >= 75
    assert {e.source for e in episodes} == {SOURCE_POLICY}
    exploration = describe(Path("runs/latest"))["parts"]["exploration"]
    assert exploration["episodes"] == len(episodes)


def test_only_evaluations_of_the_same_scenes_are_compared(tmp_path):
    first = evaluated(tmp_path / "first.jsonl", 1, 0, 0, 1)
    evaluated(tmp_path / "second.jsonl", 0, 0, 0, 0)
    second = evaluated(tmp_path / "second.jsonl", 1, 1, 0, 0, first_seed=2)  # the last counts
    comparison = robot_rl.compare_results(first, second)
    assert (comparison.won, comparison.lost) == (1, 0)  # seed 2; seed 3 both have solved
    elsewhere = evaluated(tmp_path / "far.jsonl", 1, first_seed=100)
    with pytest.raises(robot_rl.RobotRLError, match=r"no scene; got: seeds 0 … 3 and 100 … 100"):
        robot_rl.compare_results(first, elsewhere)
    with pytest.raises(robot_rl.RobotRLError, match="there is no evaluation in"):
        robot_rl.compare_results(first, tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["task=peg_insert_hard"], "got: task=peg_insert_hard; expected: task=peg_insert$"),
        (
            ["++task.environment.clearance=0.0005"],
            r"got: task\.environment\.clearance=0\.0005; expected: .*clearance=0\.001$",
        ),
        (["domain=lab"], "got: domain=lab; expected: domain=ideal"),
        (
            ["robot=ros_sim"],
            "got: domain=None, robot=ros_sim, .*; expected: domain=ideal, robot=sim",
        ),
    ],
)
def test_a_seed_is_another_scene_in_another_task(tmp_path, words, told):
    first = evaluated(tmp_path / "first.jsonl", 1, 0)
    with pytest.raises(robot_rl.RobotRLError, match=f"different scenes; {told}"):
        robot_rl.compare_results(first, evaluated(tmp_path / "other.jsonl", 0, 1, words=words))


def test_what_makes_no_scene_may_differ(tmp_path):
    first = evaluated(tmp_path / "first.jsonl", 1, 0)
    words = ["observation=pixels", "algorithm=rlpd", "reset=none", "seed=3"]
    other = evaluated(tmp_path / "other.jsonl", 1, 1, words=words)
    assert robot_rl.compare_results(first, other).won == 1


def test_a_record_that_does_not_say_its_scenes_is_not_compared(tmp_path):
    first = evaluated(tmp_path / "first.jsonl", 1, 0)
    record = json.loads(first.read_text())
    del record["task"], record["scenes"]
    (tmp_path / "old.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(robot_rl.RobotRLError, match="older version does not say"):
        robot_rl.compare_results(first, tmp_path / "old.jsonl")
