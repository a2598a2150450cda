"""Work on a run that can be gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from robot_rl.processes.group import ProcessDied
from robot_rl.run import RunDirectory


@contextmanager
def resumable(run: RunDirectory, how: str) -> Iterator[None]:
    """Say where the work goes on, and after an end before its time with what.

    Args:
        run: The run directory.
        how: The command that goes on.
    """
    print(f"run directory: {run.path}", flush=True)
    try:
        yield
    except (KeyboardInterrupt, ProcessDied):
        print(f"to go on: {how}", flush=True)
        raise


def same_command(run: RunDirectory) -> str:
    """How a stage goes on that takes its run as `run=`."""
    return f"the same command with run={run.path}"
