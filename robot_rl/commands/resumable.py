"""Work in a run directory: a new one, or one that is gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig

from robot_rl.commands.run_config import lasting, save_resolved
from robot_rl.processes.folders import point
from robot_rl.processes.group import ProcessDied
from robot_rl.run import LATEST, RunDirectory


@contextmanager
def working_run(
    config: DictConfig, key: str = "run", how: str = "the same command with run="
) -> Iterator[RunDirectory]:
    """Open the run that the configuration names, or make one; say where, and how to go on.

    Args:
        config: The configuration; a new run keeps it.
        key: The key that names the run.
        how: What goes on with it, up to its path.

    Raises:
        RunError: There is no such run, or it cannot be made.
    """
    with ExitStack() as stack:
        if config[key]:
            run = RunDirectory.open(config[key], config.runs_directory)
        else:
            run = stack.enter_context(_new_run(config))
        print(f"run directory: {run.path}", flush=True)
        try:
            yield run
        except (KeyboardInterrupt, ProcessDied) as error:
            if isinstance(error, KeyboardInterrupt) or not run.is_empty():
                print(f"to go on: {how}{run.path}", flush=True)
            raise


@contextmanager
def _new_run(config: DictConfig) -> Iterator[RunDirectory]:
    """Make a run; if work fails before anything is recorded, it is removed but for its logs.

    `latest` then points to where it pointed before. A run that a person stops can be gone on with.
    """
    latest = Path(config.runs_directory).absolute() / LATEST
    before = latest.readlink() if latest.is_symlink() else None
    run = RunDirectory.create(config.task.name, config.runs_directory)
    try:
        save_resolved(lasting(config), run.path)
        yield run
    except Exception:
        if run.is_empty():
            print("nothing was recorded", flush=True)
            if latest.resolve() == run.path:
                latest.unlink() if before is None else point(latest, before)
            if not any(log.stat().st_size for log in run.path.glob("logs/*.log")):
                shutil.rmtree(run.path)
            with suppress(OSError):  # other runs are in them
                run.path.parent.rmdir()
                latest.parent.rmdir()
        raise
