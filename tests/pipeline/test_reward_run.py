"""From collecting examples to a policy that learns on the classifier's word, on a tiny scale."""

from __future__ import annotations

import json

import pytest
from tiny_runs import TINY, lines

from robot_rl import cli
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.replay import StoreReader
from robot_rl.rewards.classifier import TrainedClassifier

CAMERA = "{_target_: robot_rl.env.sim.cameras.CameraOptions, name: front, width: 32, height: 24}"
SMALL = (
    "task=reach",
    f"classifier.cameras=[{CAMERA}]",
    "classifier.collection.positive_frames=12",
    "classifier.collection.frames_after_success=2",
    "classifier.collection.negative_episodes=8",
)


@pytest.fixture
def examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["collect-reward", *SMALL]) == 0
    return (tmp_path / "runs/latest").resolve()


def test_examples_are_recorded_and_a_weak_classifier_is_called_weak(examples, capsys):
    recorded = EpisodeDataset(examples / "reward.zarr")
    assert int(recorded.read("success").sum()) == 12
    assert int((~recorded.successes).sum()) == 8
    assert recorded.read("images/front").shape[1:] == (24, 32, 3)
    assert cli.main(["collect-reward", f"run={examples}"]) == 0
    assert EpisodeDataset(examples / "reward.zarr").seeds.tolist() == recorded.seeds.tolist()

    small = ("classifier.training.updates=3", "classifier.training.batch_size=8")
    assert cli.main(["train-reward", *small]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: only 3 held-out episodes without success" in said
    record = json.loads((examples / "reward.json").read_text())
    trained = TrainedClassifier.load(examples / "checkpoints/reward")
    assert (record["version"], record["threshold"]) == (
        trained.version,
        trained.decision.threshold,
    )
    page = (examples / "reward.html").read_text()
    assert "data:image/png;base64," in page
    assert "Success classifier · reach" in page


@pytest.mark.slow
def test_a_policy_learns_on_the_word_of_the_classifier(examples, tmp_path, robot_rl_command):
    done = robot_rl_command("train-reward", "classifier.training.updates=60", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    path = examples / "checkpoints/reward"
    reward = (
        "reward=classifier",
        f"reward.source.path={path}",
        f"classifier.cameras=[{CAMERA}]",
    )
    done = robot_rl_command(
        "train", *TINY, *reward, "environment_steps=200", "evaluation.videos=0", timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    assert all("task_success" in episode for episode in lines(run / "episodes.jsonl"))
    reader = StoreReader(run / "store")
    rows = [reader.read_episode("reach", e) for e in reader.episodes("reach") if e.actor == 1]
    reader.close()
    versions = {int(v) for episode in rows for v in episode["reward_version"][:-1]}
    assert versions == {TrainedClassifier.load(path).version}
    assert not any(name.startswith("images/") for name in rows[0].dtype.names)


def test_a_classifier_that_is_not_there_is_said_before_anything_is_made(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "reward=classifier", "reward.source.path=nowhere"]) == 2
    assert "the success classifier in" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert cli.main(["train", "reward=classifier"]) == 2
    assert "reward.source.path" in capsys.readouterr().err
