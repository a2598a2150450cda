"""Starts the ROS 2 nodes of a robot for as long as a command runs, and keeps them running."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.signals import ask_to_end
from robot_rl.ros.environment import prepare_environment
from robot_rl.ros.node_description import NodeDescription
from robot_rl.ros.nodes import node_table

_POLL_SECONDS = 0.1


class NodeSupervisor:
    """Runs the nodes of a table; one that is killed is started again.

    A node that ends with an error of its own, such as an impossible parameter, cannot be helped:
    the process is then asked to end, as by Ctrl-C, and `check` raises. So it is when one cannot be
    started again, or watching fails in any other way.

    Args:
        table: The nodes.
        group: Starts them and ends them.
        folder: Where their parameter files are written.
    """

    def __init__(self, table: Sequence[NodeDescription], group: ProcessGroup, folder: Path) -> None:
        """Start the nodes; see the class for the arguments."""
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


def check_nodes(config: DictConfig) -> None:
    """Check the nodes that a command would start, before anything is made.

    Raises:
        RobotRLError: One of them cannot be started, or a camera has none.
    """
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
    with ProcessGroup(logs) as group:
        supervisor = NodeSupervisor(node_table(config), group, logs)
        try:
            yield supervisor
        except KeyboardInterrupt:
            supervisor.check()
            raise
        finally:
            supervisor.stop_watching()
