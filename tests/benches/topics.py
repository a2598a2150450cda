"""What the benches over ROS 2 topics share: a domain of their own, and demonstrations."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from robot_rl.config import Settings, compose
from robot_rl.errors import RobotRLError, installing
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.workbench import Workbench
from robot_rl.ros.environment import (
    DISCOVERY,
    SHARED_MEMORY,
    is_owned,
    prepare_environment,
    remove_abandoned_segments,
)
from robot_rl.ros.faults import RosUnavailable
from robot_rl.run import RunDirectory

NAMESPACE = "/bench"
_DEMONSTRATIONS = 2
# Of these ROS makes ports that Linux gives to nobody else.
_DOMAINS = 101


class BenchFailed(RobotRLError):
    """What was to be measured did not happen."""


def chosen(config: DictConfig) -> list[str]:
    """The overrides that what a bench starts takes over: the task and the seed."""
    return [f"task={config.choices.task}", f"seed={config.seed}"]


@contextmanager
def own_domain() -> Iterator[None]:
    """A ROS domain of this process and its children alone, on this machine alone.

    Shared memory that killed processes have left is removed at the end.

    Raises:
        RosUnavailable: ROS 2 is not installed.
    """
    if importlib.util.find_spec("rclpy") is None:
        raise RosUnavailable("ROS 2 is not installed", hint=installing("ros"))
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
    place = ["robot=ros_sim", f"robot.namespace={NAMESPACE}"]
    return compose([*place, *chosen(config), *overrides])


def demonstrated(
    config: DictConfig, folder: str, *overrides: str
) -> tuple[DictConfig, RunDirectory]:
    """Record demonstrations in a simulation of this process, which needs no time to pass.

    Returns the configuration and the run directory that they are in.
    """
    place = [f"demonstrations={_DEMONSTRATIONS}", f"runs_directory={folder}"]
    settings = compose([*chosen(config), *overrides, *place])
    run = RunDirectory.create(str(settings.task.name), folder)
    read = Settings.of(settings)
    Collect(read).run(Workbench(read, run))
    return settings, run


def shared_memory() -> dict[str, float]:
    """Number and size [MiB] of Fast DDS's files of shared memory."""
    sizes = []
    for path in _segments():
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return {"files": len(sizes), "mib": sum(sizes) / 2**20}


def _segments() -> list[Path]:
    return [*SHARED_MEMORY.glob("fastrtps_*"), *SHARED_MEMORY.glob("sem.fastrtps_*")]


def _remove_ports(files: set[Path]) -> None:
    """Remove those of these files that are ports without an owner: of a domain that has ended."""
    for path in files:
        name = path.name.removeprefix("sem.").removesuffix("_mutex").removesuffix("_el")
        if name.startswith("fastrtps_port") and not is_owned(SHARED_MEMORY / f"{name}_el"):
            path.unlink(missing_ok=True)
