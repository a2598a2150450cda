"""From collecting examples to a policy that learns on the classifier's word, on a tiny scale."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from tiny_runs import TINY, WAIT_SECONDS, act_for, lines

from robot_rl import cli
from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.learner import Learner
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import StopEvent
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.store_reader import StoreReader
from robot_rl.rewards.classifier import TrainedClassifier
from robot_rl.run import RunDirectory

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
    # It is too weak to see an expert's success.
    assert cli.main(["collect", *TINY]) == 0
    demonstrations = f"dataset={tmp_path / 'runs/latest/demonstrations.zarr'}"
    few = ("environment_steps=200", "evaluation.videos=0")
    done = robot_rl_command("train", *TINY, *reward, *few, demonstrations, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    assert all("task_success" in episode for episode in lines(run / "episodes.jsonl"))
    reader = StoreReader(run / "store")
    rows = [reader.read_episode(e) for e in reader.episodes() if e.actor == 1]
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


def test_the_configured_reward_judges_the_scripted_expert(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    anywhere = (
        "reward.source.pose=[0.5, 0, 0.2, 1, 0, 0, 0]",
        "reward.source.position_tolerance=[1, 1, 1]",
        "reward.source.rotation_tolerance=4.0",
        "reward.source.steps=3",
    )
    assert cli.main(["collect", *TINY, "reward=pose", *anywhere]) == 0
    recorded = EpisodeDataset(tmp_path / "runs/latest/demonstrations.zarr")
    assert np.diff(recorded.episode_ends, prepend=0).tolist() == [3 + 1] * 4
    assert set(recorded.read("reward_version")[recorded.read("action").any(1)]) == {2}


@pytest.mark.parametrize("stage", ["collect", "train"])
def test_an_expert_that_nobody_judges_is_refused_at_once(tmp_path, monkeypatch, capsys, stage):
    monkeypatch.chdir(tmp_path)
    assert cli.main([stage, *TINY, "reward=human"]) == 2
    said = capsys.readouterr().err
    assert "nobody says whether the scripted expert has succeeded" in said
    assert "robot-rl collect reward=task" in said
    assert not (tmp_path / "runs").exists()


def test_learning_from_annotations_waits_for_them(folder, server, monkeypatch, capsys):
    """It learned from the task's own rewards as long as there was no annotation."""
    monkeypatch.chdir(folder)
    run = RunDirectory.open("latest", "runs")
    act_for(100, run)
    config = compose(
        [*TINY, "reward.annotation=progress", "clock=realtime", "environment_steps=100"]
    )
    stop, learned = StopEvent(), threading.Event()
    with (
        ReplayClient(run.store) as client,
        Workbench(Settings.of(config), run, stop) as bench,
        WorkProgress(100) as progress,
        closing(StoreReader(run.store)) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        learner = Learner(bench)
        work = pool.submit(learner.learn, progress)
        work.add_done_callback(lambda _: learned.set())
        said = ""
        while "waits until there are some: robot-rl annotate" not in said:
            assert not learned.wait(0.05), work.result()
            said += capsys.readouterr().out
        assert learner.updates == 0
        for episode in reader.episodes():
            rows, values = episode.sequences, np.full(episode.rows, 0.5, np.float32)
            client.annotate(Annotations(episode.session_key, "progress", 1, rows, values))
        work.result(WAIT_SECONDS)
        assert learner.environment_steps == 100
        assert learner.updates > 0
