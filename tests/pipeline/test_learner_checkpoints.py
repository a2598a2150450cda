"""What is kept of a learner that is killed, or stopped in the middle of a block."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import DictConfig
from tiny_runs import TINY, RunServer, act_for

from robot_rl import learner as learning
from robot_rl.config import Settings, compose
from robot_rl.learner import Learner
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.run import LAST, STATE_FILE, RunDirectory

STEPS = 100


@pytest.fixture
def run(folder: Path, server: RunServer, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """One with 100 environment steps to learn from."""
    monkeypatch.chdir(folder)
    found = RunDirectory.open("latest", "runs")
    act_for(STEPS, found)
    return found


def configured() -> DictConfig:
    """No evaluation, which saves a checkpoint too, before the end of the run."""
    return compose([*TINY, "clock=realtime", "evaluation.every_steps=400"])


def saved_steps(run: RunDirectory) -> int:
    state = (run.complete_folder(LAST) / STATE_FILE).read_text()
    return int(json.loads(state)["environment_steps"])


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, [(50, 25), (75, 50), (100, 75)]),
        # Of a start that is killed soon the first block is kept.
        (3600.0, [(50, 25), (75, 25), (100, 25)]),
    ],
)
def test_a_checkpoint_is_saved_from_time_to_time(
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    expected: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(learning, "_SAVE_SECONDS", seconds)
    stop, saved = StopEvent(), []

    class Noting(WorkProgress):
        def update(self, done: int, *block: object) -> None:
            super().update(done, *block)
            if run.has_folder(LAST):
                saved.append((done, saved_steps(run)))
            if done == STEPS:
                stop.set()

    with (
        Workbench(Settings.of(configured()), run, stop) as bench,
        Noting(STEPS) as progress,
    ):
        Learner(bench).learn(progress)
    assert saved == expected


def test_of_a_long_block_nothing_is_kept_when_it_is_stopped(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(learning, "_SAVE_SECONDS", 0.0)
    stop = StopEvent()
    with (
        Workbench(Settings.of(configured()), run, stop) as bench,
        WorkProgress(STEPS) as progress,
    ):
        learner = Learner(bench)
        update = learner._algorithm.update

        def update_until_stopped(batch):
            if learner.environment_steps == 75:
                stop.set()
            return update(batch)

        monkeypatch.setattr(learner._algorithm, "update", update_until_stopped)
        with pytest.raises(Stopped):
            learner.learn(progress)
    assert saved_steps(run) == 75
