"""What a stage that was interrupted says, and that the command which it names goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import TINY, Command, starting

from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.learning.stages import collect
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.run import RunDirectory

COLLECT = ["collect", "task=reach", "demonstrations=2000"]
EXAMPLES = ["collect-reward", "task=reach", "observation=state_and_cameras"]


def recorded(data: Path) -> int:
    return len(EpisodeDataset(data)) if data.exists() else 0


def interrupted(folder, words, reached):
    """Start a stage, interrupt it once that is reached, and return what it printed."""
    with starting(Command) as start:
        command = start(folder, *words)
        command.wait_until(reached)
        assert command.interrupt() == 130
    printed = command.text
    assert "Traceback" not in printed
    assert printed.endswith("robot-rl: stopped\n")
    return printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "data"), [(COLLECT, "demonstrations.zarr"), (EXAMPLES, "reward.zarr")]
)
def test_recording_goes_on_with_the_command_that_it_names(tmp_path, words, data):
    latest = tmp_path / "runs/latest"
    printed = interrupted(tmp_path, words, lambda: recorded(latest / data) > 1)
    run = latest.resolve()
    assert f"run directory: {run}\n" in printed
    assert f"to go on: the same command with run={run}\n" in printed
    kept = recorded(run / data)
    interrupted(tmp_path, [*words, f"run={run}"], lambda: recorded(run / data) > kept)
    seeds = EpisodeDataset(run / data).seeds.tolist()
    assert len(set(seeds)) == len(seeds)


@pytest.mark.slow
def test_cloning_goes_on_with_the_command_that_it_names(tmp_path, cloned, robot_rl_command):
    dataset = (cloned / "runs/latest/demonstrations.zarr").resolve()
    words = ["pretrain", *TINY, f"dataset={dataset}", "cloning.updates=2000"]
    told = tmp_path / "output.txt"
    printed = interrupted(tmp_path, words, lambda: "run directory" in told.read_text())
    run = (tmp_path / "runs/latest").resolve()
    assert f"to go on: the same command with run={run}\n" in printed
    done = robot_rl_command(*words, f"run={run}")
    assert done.returncode == 0, done.stderr
    assert f"written to {run}/checkpoints/bc" in done.stdout


def test_who_goes_on_sees_at_once_what_is_there(folder, monkeypatch):
    shown = []

    class Noting(WorkProgress):
        def update(self, done: int, *block: object) -> None:
            shown.append(done)

    run = RunDirectory.open("latest", folder / "runs")
    monkeypatch.setattr(collect, "WorkProgress", Noting)
    settings = Settings.of(compose([*TINY, "demonstrations=5"]))
    collect.Collect(settings).run(Workbench(settings, run))
    assert shown == [4, 5]
