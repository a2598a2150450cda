"""What benches of a whole `robot-rl train` share: a run that is briefly prepared, and goes on."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from omegaconf import DictConfig
from topics import NAMESPACE, BenchFailed, chosen, demonstrated

from robot_rl.processes.group import ProcessDied, ProcessGroup
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from arm_watch import ArmWatch

START_SECONDS = 900.0  # the learner's first weights among them
# Of `train`, whose own children have a minute, then its replay server, then the nodes.
_END_SECONDS = 300.0
_LAST_LINES = 5
_TWO_CAMERAS = "observation=state_and_cameras"
_BRIEFLY_PREPARED = (
    "cloning.updates=100",
    "environment_steps=1000000",
    "algorithm.schedule.warmup_steps=60",
    "algorithm.schedule.critic_only_updates=10",
    "algorithm.schedule.updates_per_step=1",
)


@contextmanager
def training(
    config: DictConfig, folder: str, words: Sequence[str], seen: Sequence[str] = ()
) -> Iterator[Callable[[], None]]:
    """Run `robot-rl train` until the end of the context; yields what raises `ProcessDied` then.

    `words` are further overrides of the training, `seen` those that the demonstrations need too.
    """
    _, shown = demonstrated(config, folder, *seen)
    with train(config, folder, [f"dataset={shown.demonstrations}", *words, *seen]) as check:
        yield check


@contextmanager
def train(config: DictConfig, folder: str, words: Sequence[str]) -> Iterator[Callable[[], None]]:
    """As `training`, with demonstrations of its own unless `words` name some."""
    overrides = [*chosen(config), f"runs_directory={folder}", *words, *_BRIEFLY_PREPARED]
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


@contextmanager
def training_run(config: DictConfig) -> Iterator[ArmWatch]:
    """Run `robot-rl train` over topics, with two cameras, until the end of the context.

    Yields what watches its arm, which the actor moves, or raises `BenchFailed`.
    """
    from arm_watch import ArmWatch  # not before `own_domain`

    words = ["robot=ros_sim", f"robot.namespace={NAMESPACE}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        training(config, folder, words, seen=[_TWO_CAMERAS]) as check,
    ):
        watch = ArmWatch(NAMESPACE)
        watch.check = check
        try:

            def moves() -> bool:
                watch.check()
                return "actor" in processes() and watch.follows_for(1.0, 1.0)

            if not wait_until(moves, START_SECONDS):
                raise BenchFailed("the actor does not move the arm", got=watch.mode)
            yield watch
        finally:
            watch.close()
