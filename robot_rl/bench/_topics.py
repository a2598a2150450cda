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

from omegaconf import DictConfig

from robot_rl.bench._training import START_SECONDS, BenchFailed, chosen, processes, training
from robot_rl.config import compose
from robot_rl.ros.environment import DISCOVERY, prepare_environment
from robot_rl.ros.errors import RosUnavailable
from robot_rl.ros.shared_memory import (
    SHARED_MEMORY,
    is_owned,
    remove_abandoned_segments,
)

if TYPE_CHECKING:
    from robot_rl.bench._arm_watch import ArmWatch

NAMESPACE = "/bench"
_TWO_CAMERAS = "observation=state_and_cameras"
# Of these ROS makes ports that Linux gives to nobody else.
_DOMAINS = 101


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
    place = ["robot=ros_sim", f"robot.namespace={NAMESPACE}"]
    return compose([*place, *chosen(config), *overrides])


def shared_memory() -> dict[str, float]:
    """Number and size [MiB] of Fast DDS's files of shared memory."""
    sizes = []
    for path in _segments():
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return {"files": len(sizes), "mib": sum(sizes) / 2**20}


@contextmanager
def training_run(config: DictConfig) -> Iterator[ArmWatch]:
    """Run `robot-rl train` over topics, with two cameras, until the end of the context.

    Yields:
        What watches its arm, which the actor moves.

    Raises:
        BenchFailed: The actor does not begin to move it.
    """
    from robot_rl.bench._arm_watch import ArmWatch  # not before `own_domain`

    words = ["robot=ros_sim", f"robot.namespace={NAMESPACE}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        training(config, folder, words, seen=[_TWO_CAMERAS]) as check,
    ):
        watch = ArmWatch(NAMESPACE)
        watch.check = check
        try:
            deadline = time.monotonic() + START_SECONDS
            while "actor" not in processes() or not watch.follows_for(1.0, 1.0):
                watch.check()
                if time.monotonic() > deadline:
                    raise BenchFailed("the actor does not move the arm", got=watch.mode)
            yield watch
        finally:
            watch.close()


def _segments() -> list[Path]:
    return [*SHARED_MEMORY.glob("fastrtps_*"), *SHARED_MEMORY.glob("sem.fastrtps_*")]


def _remove_ports(files: set[Path]) -> None:
    """Remove those of these files that are ports without an owner: of a domain that has ended."""
    for path in files:
        name = path.name.removeprefix("sem.").removesuffix("_mutex").removesuffix("_el")
        if name.startswith("fastrtps_port") and not is_owned(SHARED_MEMORY / f"{name}_el"):
            path.unlink(missing_ok=True)
