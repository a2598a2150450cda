"""Clients that die or hang in motion: the arm's node holds by itself, and follows the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from arm_cell import ArmCell, sim_arm

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
    for _ in range(3):
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
