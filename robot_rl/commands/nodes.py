"""Starts the ROS 2 nodes of a robot for as long as a command runs, and keeps them running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
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


class NodeSupervisor:
    """Runs the nodes of a table; one that is killed is started again.

    Where one ends with an error of its own, such as an impossible parameter, or cannot be started
    again, this process is asked to end, as by Ctrl-C, and `check` raises.

    Args:
        table: The nodes.
        group: Starts them and ends them.
        folder: Where their parameter files are written.
    """

    def __init__(self, table: Sequence[NodeDescription], group: ProcessGroup, folder: Path) -> None:
        self._group = group
        self._names = [node.process for node in table]
        self._problem: Exception | None = None
        self._ending = threading.Event()
        for node in table:
            file = folder / f"{node.process}.yaml"
            file.write_text(node.parameter_file(), encoding="utf-8")
            group.start(node.process, node.arguments(file), module=node.module)
        self._thread = threading.Thread(target=self._watch, name="nodes", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Look whether the nodes can run.

        Raises:
            ProcessDied: One cannot; names it, with the end of its log.
            Exception: Whatever else ended the watching.
        """
        if self._problem is not None:
            raise self._problem

    def stop_watching(self) -> None:
        """Let the nodes end; call it before they are asked to."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_SECONDS):
            try:
                for name in self._names:
                    self._group.require(name)
            except Exception as problem:  # raised by `check`, in the owner's thread
                self._problem = problem
                ask_to_end()
                return


def check_robot(config: DictConfig) -> None:
    """Check the nodes that a command would start and its device, before either is made.

    Raises:
        RobotRLError: One of them cannot be started, or a camera has none; or the operator's device
            cannot be used here.
    """
    check_device(config)
    if config.start_nodes:
        node_table(config)


@contextmanager
def robot_nodes(config: DictConfig, logs: Path) -> Iterator[NodeSupervisor | None]:
    """Run the nodes of the configured robot; they end after everything else.

    Args:
        config: The configuration; a robot in this process has no nodes.
        logs: Folder of the log files.

    Yields:
        What watches them; None where there are none, or somebody else runs them.

    Raises:
        ProcessDied: A node ended with an error.
    """
    if not config.get("nodes") or not config.start_nodes:
        yield None
        return
    prepare_environment(config.robot.discovery_range)
    table = node_table(config)
    try:
        with ProcessGroup(logs) as group:
            supervisor = NodeSupervisor(table, group, logs)
            try:
                yield supervisor
            except KeyboardInterrupt:
                supervisor.check()
                raise
            finally:
                supervisor.stop_watching()
    finally:
        for node in table:
            _tell_kept_stop(node)


def _tell_kept_stop(node: NodeDescription) -> None:
    """Say of an arm that is stopped that it stays so when this command has ended."""
    folder = Path(node.parameters.get("stop_folder", default_stop_folder()))
    name = f"{node.namespace.rstrip('/')}/{node.name}"
    kept = kept_stop(folder, name)
    if kept is not None:
        clear = f"{node.namespace.rstrip('/')}/clear_errors"
        print(
            f"{name} is still stopped: {kept}. It stays so when it is started again. Next: look at"
            " the arm, give the command again and say clear_errors, with the device, in"
            f" robot-rl console, or with robot-rl doctor call={clear}",
            file=sys.stderr,
            flush=True,
        )
