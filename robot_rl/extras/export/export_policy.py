"""`robot-rl export-policy`: a policy for a robot computer without torch, and its card."""

from __future__ import annotations

import shutil
from pathlib import Path

from robot_rl.commands.runs import load_resolved
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.ledger import open_policy, policy_checkpoint
from robot_rl.extras.card.card import CARD, card, facts
from robot_rl.extras.export import exported
from robot_rl.extras.export.write_onnx import export
from robot_rl.processes.files import new_folder
from robot_rl.run import CELL_FILE, CONFIG_FILE, RunDirectory, policy_folder


def run(path: str, out: str, *, which: str, runs_directory: str) -> None:
    """Write the policy of a run, or of one of its checkpoints, into a new folder.

    The folder is a run directory too: robot-rl run and evaluate work in it.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RobotRLError(f"{target} exists", hint="name a folder that is not there")
    directory = RunDirectory.around(path, runs_directory, with_policy=True)
    folder = policy_folder(path)
    if folder is None:
        named = policy_checkpoint(directory, which)
        folder = directory.complete_folder(named) / "policy"
        behaviour, steps = open_policy(directory.path, which)
    elif (folder / exported.PLAN_GRAPH).is_file() or (folder / exported.ACT_GRAPH).is_file():
        raise RobotRLError(f"{path} is an exported policy already", hint="name its run")
    else:
        behaviour, steps = open_policy(path)
        here = Path(path).absolute()  # by way of runs/latest too
        inside = next(above for above in here.parents if above.samefile(directory.path))
        named = str(here.relative_to(inside))
    config = load_resolved(directory.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target, target.with_name(f".{target.name}.partial")) as partial:
        told = facts(directory, config, named, folder, behaviour, steps)
        apart = export(partial, behaviour, told)
        for name in (CONFIG_FILE, CELL_FILE):
            if (directory.path / name).is_file():
                shutil.copy(directory.path / name, partial / name)
        text = card(directory, exported.describe(partial))
        (partial / CARD).write_text(text, encoding="utf-8")
    print(f"{named} of {directory.path}: the largest difference from torch is {apart:.1e}")
    plays = in_shell("robot-rl", "run", target)
    print(f"written to {target}: {plays} plays it; {target / CARD} is its card")
