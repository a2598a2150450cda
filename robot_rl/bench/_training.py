"""What benches of a whole `robot-rl train` share: a run that is briefly prepared, and goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from omegaconf import DictConfig

from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.processes.group import ProcessDied, ProcessGroup
from robot_rl.processes.progress import WorkProgress
from robot_rl.run import RunDirectory
from robot_rl.stages.collect import collect

START_SECONDS = 900.0  # the learner's first weights among them
# Of `train`, whose own children have a minute, then its replay server, then the nodes.
_END_SECONDS = 300.0
_LAST_LINES = 5
_DEMONSTRATIONS = 2
_BRIEFLY_PREPARED = (
    "cloning.updates=100",
    "environment_steps=1000000",
    "algorithm.schedule.warmup_steps=60",
    "algorithm.schedule.critic_only_updates=10",
    "algorithm.schedule.updates_per_step=1",
)


class BenchFailed(RobotRLError):
    """What was to be measured did not happen."""


def chosen(config: DictConfig) -> list[str]:
    """The overrides that what a bench starts takes over: the task and the seed."""
    return [f"task={config.choices.task}", f"seed={config.seed}"]


def demonstrated(
    config: DictConfig, folder: str, *overrides: str
) -> tuple[DictConfig, RunDirectory]:
    """Record demonstrations in a simulation of this process, which needs no time to pass.

    Args:
        config: The configuration, whose task it is.
        folder: Where the run directory is made.
        *overrides: Further overrides.

    Returns:
        The configuration and the run directory that they are in.
    """
    place = [f"demonstrations={_DEMONSTRATIONS}", f"runs_directory={folder}"]
    settings = compose([*chosen(config), *overrides, *place])
    run = RunDirectory.create(str(settings.task.name), folder)
    with WorkProgress(_DEMONSTRATIONS, "demonstrations") as progress:
        collect(settings, run, progress)
    return settings, run


@contextmanager
def training(
    config: DictConfig, folder: str, words: Sequence[str], seen: Sequence[str] = ()
) -> Iterator[Callable[[], None]]:
    """Run `robot-rl train` until the end of the context.

    Args:
        config: The configuration, whose task and seed it is.
        folder: Where the run directory is made.
        words: Further overrides of the training.
        seen: Those that the demonstrations need as well.

    Yields:
        What raises `ProcessDied` where the training has ended.
    """
    _, shown = demonstrated(config, folder, *seen)
    overrides = [
        *chosen(config),
        f"dataset={shown.demonstrations}",
        f"runs_directory={folder}",
        *words,
        *seen,
        *_BRIEFLY_PREPARED,
    ]
    started: dict[str, psutil.Process] = {}
    try:
        with ProcessGroup(Path(folder) / "bench", end_seconds=_END_SECONDS) as group:
            group.start("train", ["train", *overrides])
            try:
                yield lambda: group.require("train")
            finally:
                started = processes()
    except ProcessDied:
        _tell_logs(Path(folder))  # which go with the folder
        raise
    finally:
        for process in started.values():  # of a run that did not end in time
            if process.is_running():
                process.kill()


def _tell_logs(folder: Path) -> None:
    for log in sorted(folder.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        told = [f"{log.relative_to(folder)} ends with:", *lines]
        sys.stderr.write("\n  ".join(told) + "\n")


def processes() -> dict[str, psutil.Process]:
    """The stages and nodes that this process has started, and their children, by name."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            name = _name(child.cmdline())
        except psutil.Error:
            continue  # it has ended since
        if name is not None:
            found[name] = child
    return found


def _name(words: list[str]) -> str | None:
    node = next((word for word in words if word.startswith("__node:=")), None)
    if node is not None:
        return node.partition(":=")[2]
    if "robot_rl.cli" in words[:-1]:
        return words[words.index("robot_rl.cli") + 1]
    return None
