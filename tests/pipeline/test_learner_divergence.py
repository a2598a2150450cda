"""A learner whose numbers leave the finite ones says so, and keeps the checkpoint of before."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import TINY, RunServer, act_for

from robot_rl.config import Settings, compose
from robot_rl.learner import Learner
from robot_rl.learning.algorithms.base import LearningDiverged
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import StopEvent
from robot_rl.run import LAST, STATE_FILE, RunDirectory

STEPS = 100


@pytest.mark.parametrize("updates_before_the_end", [0, 3])
def test_broken_weights_are_named_and_not_saved(
    folder: Path,
    server: RunServer,
    monkeypatch: pytest.MonkeyPatch,
    updates_before_the_end: int,
) -> None:
    monkeypatch.chdir(folder)
    run = RunDirectory.open("latest", "runs")
    act_for(STEPS, run)
    config = compose(
        [*TINY, "clock=realtime", f"environment_steps={STEPS}", "evaluation.every_steps=50"]
    )
    with (
        Workbench(Settings.of(config), run, StopEvent()) as bench,
        WorkProgress(STEPS) as progress,
    ):
        learner = Learner(bench)
        algorithm = learner._algorithm
        update, last = algorithm.update, learner._blocks.updates_at(STEPS)

        def break_one(batch):
            metrics = update(batch)
            if algorithm.updates == last - updates_before_the_end:
                with torch.no_grad():
                    next(algorithm.actor.parameters()).view(-1)[0] = math.nan
            return metrics

        monkeypatch.setattr(algorithm, "update", break_one)
        with pytest.raises(LearningDiverged, match="no longer a finite number at step 100"):
            learner.learn(progress)
    last_checkpoint = run.complete_folder(LAST)
    assert json.loads((last_checkpoint / STATE_FILE).read_text())["environment_steps"] < STEPS
    tensors = load_file(last_checkpoint / "algorithm.safetensors")
    assert all(torch.isfinite(value).all() for value in tensors.values())
