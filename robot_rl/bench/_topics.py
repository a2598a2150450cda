"""What the benches over ROS 2 topics share: a domain of their own, and a run to look at."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from omegaconf import DictConfig

from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.progress import WorkProgress
from robot_rl.ros.environment import DISCOVERY, prepare_environment
from robot_rl.ros.errors import RosUnavailable
from robot_rl.ros.shared_memory import (
    SHARED_MEMORY,
    is_owned,
    remove_abandoned_segments,
)
from robot_rl.run import RunDirectory
from robot_rl.stages.collect import collect
from robot_rl.stages.processes import ProcessGroup

if TYPE_CHECKING:
    from robot_rl.bench._arm_watch import ArmWatch

NAMESPACE = "/bench"
CAMERA = "robot_rl.env.sim.cameras.CameraOptions"
_TWO_CAMERAS = (
    f"observation.cameras=[{{_target_:{CAMERA},name:front}},{{_target_:{CAMERA},name:wrist}}]"
)
_DEMONSTRATIONS = 2
_BRIEFLY_PREPARED = (
    "cloning.updates=100",
    "environment_steps=1000000",
    "algorithm.schedule.warmup_steps=60",
    "algorithm.schedule.critic_only_updates=10",
    "algorithm.schedule.updates_per_step=1",
)
_START_SECONDS = 900.0  # the learner's first weights among them
# Of these ROS makes ports that Linux gives to nobody else.
_DOMAINS = 101


class BenchFailed(RobotRLError):
    """What was to be measured did not happen."""


@contextmanager
def own_domain() -> Iterator[None]:
    """A ROS domain of this process and its children alone, on this machine alone.

    Shared memory that killed processes have left is removed at the end.

    Raises:
        RosUnavailable: ROS 2 is not installed.
    """
    if importlib.util.find_spec("rclpy") is None:
        raise RosUnavailable("ROS 2 is not installed", hint="pip install 'robot_rl[ros]'")
    os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % _DOMAINS)
    os.environ[DISCOVERY] = "LOCALHOST"
    prepare_environment()
    before = set(_segments())
    try:
        yield
    finally:
        remove_abandoned_segments()
        _remove_ports(set(_segments()) - before)


def over_topics(config: DictConfig, *overrides: str) -> DictConfig:
    """The configuration of the simulated robot behind topics, with the task that was chosen."""
    chosen = [f"task={config.choices.task}", f"seed={config.seed}"]
    return compose(["robot=ros_sim", f"robot.namespace={NAMESPACE}", *chosen, *overrides])


def shared_memory() -> dict[str, float]:
    """Number and size [MiB] of Fast DDS's files of shared memory."""
    sizes = []
    for path in _segments():
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return {"files": len(sizes), "mib": sum(sizes) / 2**20}


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
    chosen = [f"task={config.choices.task}", f"seed={config.seed}", *overrides]
    settings = compose([*chosen, f"demonstrations={_DEMONSTRATIONS}", f"runs_directory={folder}"])
    run = RunDirectory.create(str(settings.task.name), folder)
    with WorkProgress(_DEMONSTRATIONS, "demonstrations") as progress:
        collect(settings, run, progress)
    return settings, run


@contextmanager
def training_run(config: DictConfig) -> Iterator[ArmWatch]:
    """Run `robot-rl train` over topics, with two cameras, until the end of the context.

    Yields:
        What watches its arm, which the actor moves.

    Raises:
        BenchFailed: The actor does not begin to move it.
    """
    from robot_rl.bench._arm_watch import ArmWatch  # not before `own_domain`

    with tempfile.TemporaryDirectory() as folder:
        _, shown = demonstrated(config, folder, _TWO_CAMERAS)
        words = [
            "robot=ros_sim",
            f"robot.namespace={NAMESPACE}",
            f"task={config.choices.task}",
            f"seed={config.seed}",
            f"dataset={shown.demonstrations}",
            f"runs_directory={folder}",
            _TWO_CAMERAS,
            *_BRIEFLY_PREPARED,
        ]
        watch = ArmWatch(NAMESPACE)
        started: dict[str, psutil.Process] = {}
        try:
            with ProcessGroup(Path(folder) / "bench") as group:
                group.start("train", ["train", *words])
                watch.check = lambda: group.require("train")
                deadline = time.monotonic() + _START_SECONDS
                while "actor" not in processes() or not watch.follows_for(1.0, 1.0):
                    watch.check()
                    if time.monotonic() > deadline:
                        raise BenchFailed("the actor does not move the arm", got=watch.mode)
                try:
                    yield watch
                finally:
                    started = processes()
        finally:
            watch.close()
            for process in started.values():  # of a run that did not end in time
                if process.is_running():
                    process.kill()


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


def _segments() -> list[Path]:
    return [*SHARED_MEMORY.glob("fastrtps_*"), *SHARED_MEMORY.glob("sem.fastrtps_*")]


def _remove_ports(files: set[Path]) -> None:
    """Remove those of these files that are ports without an owner: of a domain that has ended."""
    for path in files:
        name = path.name.removeprefix("sem.").removesuffix("_mutex").removesuffix("_el")
        if name.startswith("fastrtps_port") and not is_owned(SHARED_MEMORY / f"{name}_el"):
            path.unlink(missing_ok=True)
