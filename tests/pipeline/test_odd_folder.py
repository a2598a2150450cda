"""A whole run works in a folder of any name, and prints commands that a shell takes back."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import TINY, WAIT_SECONDS

from robot_rl import cli
from robot_rl.run import RunDirectory

# Few steps, but all the processes.
FEW = (
    "demonstrations=2",
    "cloning.updates=30",
    "environment_steps=100",
    "evaluation.every_steps=100",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.videos=0",
)


def test_whole_run_in_a_folder_of_an_odd_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "Jürgen's lab (2), x=y"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "robot_rl.cli", "train", *TINY, *FEW],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert "deployed: " in done.stdout, done.stdout + done.stderr
    run = RunDirectory.open("latest", folder / "runs")

    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", f"resume={run.path}", *FEW[-3:]]) == 0
    again = capsys.readouterr().out.partition("to measure its policy again: ")[2]
    told = again.partition("; to learn on: ")
    evaluate, learn_on = shlex.split(told[0]), shlex.split(told[2])
    assert evaluate == ["robot-rl", "evaluate", str(run.path)]
    assert learn_on[:3] == ["robot-rl", "train", f"resume={run.path}"]
    assert cli.main([*evaluate[1:], "episodes=2", "evaluation.videos=0"]) == 0
    assert cli.main(["inspect", f"{folder.name}/runs/latest"]) == 0
