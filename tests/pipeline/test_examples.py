"""The examples: parts of one's own, in folders outside of robot_rl, through the real processes."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from tiny_runs import TINY, lines

import robot_rl
from policies.places import PATH_VARIABLE, add_folder
from robot_rl import cli
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset

# Of a tiny run: the policy is another, and it goes on for half as long.
WORDS = [word for word in TINY if not word.startswith(("task=", "policy.", "environment_steps="))]


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    """What an earlier shell has set does not count."""
    monkeypatch.setenv(PATH_VARIABLE, "")


@pytest.fixture
def folders(checkout):
    return {path.name: str(path) for path in (checkout / "examples").glob("[1-9]_*")}


def added(folders, *names):
    return [word for name in names for word in ("--config-dir", folders[name])]


def test_each_command_of_the_page_fits_its_folder(checkout, monkeypatch):
    page = (checkout / "examples/README.md").read_text()
    commands = re.findall(r"robot-rl (?:train|collect) --config-dir (\S+) ([^#\n]+)", page)
    named = {folder for folder, _ in commands}
    cells = set(re.findall(r"robot-rl \w+ cell=(\S+)", page))  # tests/ros goes through these
    folders = {f"examples/{path.name}" for path in (checkout / "examples").glob("*_*")}
    assert named | cells == folders
    for folder, words in commands:
        monkeypatch.setenv(PATH_VARIABLE, "")
        add_folder(str(checkout / folder))
        compose(shlex.split(words))


def test_parts_of_ones_own_demonstrate_are_cloned_and_are_evaluated(
    tmp_path, folders, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    own = added(folders, "1_task", "2_policy", "4_reward")
    parts = ["task=press_button", "policy=regression", "policy.hidden=[64,64]", "reward=settled"]
    assert cli.main(["collect", *own, *WORDS, *parts]) == 0
    assert cli.main(["pretrain", *own]) == 0
    rows = EpisodeDataset(tmp_path / "runs/latest/demonstrations.zarr").read("reward_version")
    assert set(rows) == {0, 1000}  # in an episode's last row nobody judged

    which = ["evaluation.final_episodes=3", "evaluation.videos=0"]
    assert cli.main(["evaluate", *own, *which]) == 0
    (result,) = lines(tmp_path / "runs/latest/evaluate.jsonl")
    assert result["policy"] == "regression"

    monkeypatch.setenv(PATH_VARIABLE, "")
    assert cli.main(["evaluate", *which]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert "the run was made with " in said
    assert "name the folder with configs/" in said


@pytest.mark.slow  # a whole run, and each of its processes imports torch
def test_parts_of_ones_own_train_and_are_evaluated(tmp_path, robot_rl_command, folders):
    """By every process of the run: learner, actor, evaluator; and by `evaluate` afterwards."""
    own = added(folders, "1_task", "2_policy", "3_algorithm", "4_reward", "6_stage")
    done = robot_rl_command(
        "train",
        *own,
        *WORDS,
        "task=press_button",
        "policy=regression",
        "policy.hidden=[64,64]",
        "algorithm=blend",
        "reward=settled",
        "recipe=rehearsed",
        "recipe.stages.rehearse.episodes=3",
        "recipe.stages.rehearse.judged=4",
        "environment_steps=100",
        "evaluation.videos=0",
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    policies = [record["policy"] for record in lines(run / "evaluations.jsonl")]
    assert policies == ["regression", "blend", "regression", "blend"]
    stages = {record["stage"]: record["finished"] for record in lines(run / "stages.jsonl")}
    assert stages == dict.fromkeys(("collect", "clone", "rehearse", "online"), True)
    assert "stage rehearse  done" in done.stdout
    (noted,) = lines(run / "rehearsal.jsonl")
    assert set(noted) == {"before", "after"}
    assert len(EpisodeDataset(run / "rehearsal.zarr")) == 3
    rows = np.concatenate([e.rows for e in robot_rl.read_episodes(run)])
    assert set(rows["reward_version"]) == {0, 1000}  # in an episode's last row nobody judged

    which = ["evaluation.policy=learned", "evaluation.final_episodes=6", "evaluation.videos=0"]
    done = robot_rl_command("evaluate", *own, *which)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = lines(run / "evaluate.jsonl")
    assert result["policy"] == "blend"
