"""A whole run works in a folder of any name, and prints commands that a shell takes back."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from tiny_runs import TINY, WAIT_SECONDS

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


def _said(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "robot_rl.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_whole_run_in_a_folder_of_an_odd_name(tmp_path: Path):
    folder = tmp_path / "Jürgen's lab (2), x=y"
    folder.mkdir()
    assert "deployed: " in _said(folder, "train", *TINY, *FEW)
    run = RunDirectory.open("latest", folder / "runs")
    again = _said(folder, "train", f"resume={run.path}", *FEW[-3:])
    told = again.partition("to measure its policy again: ")[2].partition("; to learn on: ")
    evaluate, learn_on = shlex.split(told[0]), shlex.split(told[2])
    assert evaluate == ["robot-rl", "evaluate", str(run.path)]
    assert learn_on[:3] == ["robot-rl", "train", f"resume={run.path}"]
    _said(tmp_path, *evaluate[1:], "episodes=2", "evaluation.videos=0")
    _said(tmp_path, "inspect", f"{folder.name}/runs/latest")
