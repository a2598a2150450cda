"""The policies in a run's checkpoints, read without anything that trains them."""

from __future__ import annotations

import json
from pathlib import Path

from policies import checkpoint
from policies.behaviour import Behaviour
from robot_rl.run import CLONED, LAST, RunDirectory

STATE_FILE = "state.json"
DEPLOYED, CLONED_POLICY, LEARNED_POLICY = POLICIES = ("deployed", "cloned", "learned")


def load_cloned(run: RunDirectory) -> Behaviour:
    """Load the cloned policy of a run.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    return checkpoint.load(run.complete_folder(CLONED) / "policy")


def load_policy(run: RunDirectory, which: str = DEPLOYED) -> tuple[Behaviour, int]:
    """Load a policy of a run, and the environment steps behind it: none behind the cloned one.

    Args:
        run: The run directory.
        which: One of `POLICIES`. The deployed one is what `train` has decided for at its end; until
            then the newest.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    if which == CLONED_POLICY or (which == DEPLOYED and _deploys_cloned(run)):
        return load_cloned(run), 0
    folder = run.complete_folder(LAST)
    return checkpoint.load(folder / "policy"), _steps_of(folder)


def _deploys_cloned(run: RunDirectory) -> bool:
    if not run.has_folder(LAST):
        return True
    decided = run.read_summary()
    # A run that went on learning since has decided nothing yet.
    current = decided.get("environment_steps") == learned_steps(run)
    return current and decided.get("deployed") == CLONED_POLICY


def learned_steps(run: RunDirectory) -> int:
    """Environment steps behind a run's last checkpoint; 0 without one."""
    return _steps_of(run.complete_folder(LAST)) if run.has_folder(LAST) else 0


def _steps_of(folder: Path) -> int:
    state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    return int(state["environment_steps"])
