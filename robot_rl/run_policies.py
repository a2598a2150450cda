"""The policies in a run's checkpoints, read without anything that trains them."""

from __future__ import annotations

import json
from pathlib import Path

from policies import checkpoint
from policies.behaviour import Behaviour
from robot_rl.run import CLONED, LAST, RunDirectory

STATE_FILE = "state.json"


def load_cloned(run: RunDirectory) -> Behaviour:
    """Load the cloned policy of a run.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    return checkpoint.load(run.complete_folder(CLONED) / "policy")


def load_newest(run: RunDirectory) -> tuple[Behaviour, int]:
    """Load a run's last policy, and the environment steps behind it; the cloned one if none yet.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    if not run.has_folder(LAST):
        return load_cloned(run), 0
    folder = run.complete_folder(LAST)
    return checkpoint.load(folder / "policy"), _steps_of(folder)


def learned_steps(run: RunDirectory) -> int:
    """Environment steps behind a run's last checkpoint; 0 without one."""
    return _steps_of(run.complete_folder(LAST)) if run.has_folder(LAST) else 0


def _steps_of(folder: Path) -> int:
    state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    return int(state["environment_steps"])
