"""Starts the ROS 2 nodes of a robot for as long as a command runs, and keeps them running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from robot_rl.env.factory import check_device
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.signals import ask_to_end
from robot_rl.ros.environment import prepare_environment
from robot_rl.ros.nodes import NodeDescription, node_table
from robot_rl.safety import default_stop_folder, kept_stop

_POLL_SECONDS = 0.1


def check_robot(config: DictConfig) -> None:
    """Raise `RobotRLError` where a command's nodes cannot be started, or its device not be used."""
    check_device(config)
    if config.start_nodes:
        node_table(config)


@contextmanager
def robot_nodes(config: DictConfig, logs: Path) -> Iterator[None]:
    """Run the nodes of the configured robot, if it has any and nobody else runs them.

    They end after everything else. One that is killed is started again. Where one ends with an
    error of its own, such as an impossible parameter, or cannot be started again, this process is
    asked to end, as by Ctrl-C, and that is a `ProcessDied`. Logs and parameters are in `logs`.
    """
    if not config.get("nodes") or not config.start_nodes:
        yield
        return
    prepare_environment(config.robot.discovery_range)
    table = node_table(config)
    problems: list[Exception] = []
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(_POLL_SECONDS):
            try:
                for node in table:
                    group.require(node.process)
            except Exception as problem:  # raised in the owner's thread
                problems.append(problem)
                ask_to_end()
                return

    try:
        with ProcessGroup(logs) as group:
            for node in table:
                file = logs / f"{node.process}.yaml"
                file.write_text(node.parameter_file(), encoding="utf-8")
                group.start(node.process, node.arguments(file), module=node.module)
            watching = threading.Thread(target=watch, name="nodes", daemon=True)
            watching.start()
            try:
                yield
            except KeyboardInterrupt:
                if problems:
                    raise problems[0] from None
                raise
            finally:
                ending.set()
                watching.join()
    finally:
        for node in table:
            _tell_kept_stop(node)


def _tell_kept_stop(node: NodeDescription) -> None:
    """Say of an arm that is stopped that it stays so when this command has ended."""
    folder = Path(node.parameters.get("stop_folder", default_stop_folder()))
    namespace = node.namespace.rstrip("/")
    name = f"{namespace}/{node.name}"
    kept = kept_stop(folder, name)
    if kept is not None:
        print(
            f"{name} is still stopped: {kept}. It stays so when it is started again. Next: look at"
            " the arm, give the command again and say clear_errors, with the device, in"
            f" robot-rl console, or with robot-rl doctor call={namespace}/clear_errors",
            file=sys.stderr,
            flush=True,
        )
