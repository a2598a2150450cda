"""Clients that die or hang in motion: the arm's node holds by itself, and follows the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="needs ROS 2")

from arm_cell import WORKSPACE, ArmCell, sim_arm
from listening import Listener

pytestmark = pytest.mark.faults

CLIENT = Path(__file__).with_name("moving_client.py")
# The deadline is 200 ms; the rest is the tick, the topic and this process's own lateness.
HOLDS_WITHIN = 0.25


@pytest.fixture(scope="module")
def cell():
    cell = ArmCell(f"/killed_{os.getpid()}", sim_arm())
    yield cell
    cell.close()


@pytest.fixture
def start_client(cell):
    clients = []

    def start():
        command = [sys.executable, str(CLIENT), cell.namespace]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        clients.append(subprocess.Popen(command, env=environment))
        cell.until_mode("follow", 60.0)
        return clients[-1]

    yield start
    for client in clients:
        client.kill()
        client.wait()


def held_after(cell, since):
    """Time from `since` until the node said that it holds [s], by this process's steady clock."""
    cell.listener.until(lambda: cell.mode().startswith("hold"), 10.0)
    return cell.mode_at - since


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_the_arm_holds_after_its_client(cell, start_client, ending):
    times = []
    for _ in range(2):
        client = start_client()
        time.sleep(0.5)
        client.send_signal(ending)
        times.append(held_after(cell, time.monotonic()))
        assert "no command for 200 ms" in cell.mode()
        held = cell.pose()
        time.sleep(0.5)
        assert not cell.moved(held, 0.015)
        if ending == signal.SIGSTOP:
            # What it wanted to send before it was stopped is of the past when it goes on.
            client.send_signal(signal.SIGCONT)
            cell.until_mode("follow")
        client.kill()
        client.wait()
        cell.until_mode("hold")
    assert max(times) <= HOLDS_WITHIN, times


class Node:
    """The arm's node as a process that a supervisor starts again."""

    def __init__(self, namespace, folder):
        values = {"driver": yaml.safe_dump(sim_arm()), "stop_folder": str(folder), **WORKSPACE}
        file = folder / "parameters.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": values}}))
        ros = ["--ros-args", "-r", f"__ns:={namespace}", "--params-file", str(file)]
        self._command = [sys.executable, "-m", "drivers.arm.sim_node", *ros]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._environment.pop("_ROS_WHEELS_BOOTSTRAP_COMPLETE", None)
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, env=self._environment)

    @property
    def memory(self):
        """What is mapped into the process's memory."""
        return Path(f"/proc/{self._process.pid}/maps").read_text()

    def kill(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def apart(tmp_path):
    """A node in a process of its own that holds, and who listens to it."""
    namespace = f"/apart_{os.getpid()}"
    listener = Listener(namespace)
    node = Node(namespace, tmp_path)
    try:
        listener.reports("mode", "hold")
        yield node, listener
    finally:
        node.kill()
        listener.close()


def test_a_stop_outlives_the_node_that_kept_it(apart):
    node, listener = apart
    assert listener.trigger("stop")[0]
    listener.reports("mode", "stopped")
    node.kill()
    listener.heard["/diagnostics"].clear()
    node.start()
    facts = listener.reported("stopped: before this node started: the service stop")
    assert facts["mode"] == "stopped"
    assert listener.trigger("clear_errors")[0]
    listener.reports("mode", "hold")
    node.kill()
    listener.heard["/diagnostics"].clear()
    node.start()
    listener.reports("mode", "hold")


def test_no_frozen_process_holds_a_lock_that_the_node_waits_for(apart):
    # Fast DDS's shared memory has a lock for each receiver. One that was frozen in 1 of 50 to 100
    # tries held it, and the node, which sends to it, neither read its arm nor held it meanwhile.
    node, _ = apart
    assert "/dev/shm/fastrtps_" in Path("/proc/self/maps").read_text()
    assert "/dev/shm/fastrtps_" not in node.memory
