"""The UR driver with the real `ur-rtde`, against the twin of its controller."""

import json
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rtde_control", reason="needs the extra ur")

from drivers.arm.base import Tool
from drivers.arm.ur import UrArm
from drivers.base import DriverError, DriverFault, DriverTimeout, Stale

# The library and the controller answer each other in milliseconds, which a busy machine does not.
pytestmark = pytest.mark.slow

UR_RTDE = version("ur-rtde")
SERVER = Path(__file__).with_name("ur_cell.py")


class Cell:
    """A controller in a process of its own, a driver, and the loop of a node that reads it."""

    def __init__(self, tool=None, **controller):
        self.host = f"127.0.{1 + os.getpid() % 250}.{1 + time.monotonic_ns() % 250}"
        options = json.dumps({"host": self.host, **controller})
        command = [sys.executable, str(SERVER), options]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.server.stdout.readline() == "ready\n"
        self.arm = UrArm(self.host, rate_hz=125.0, watchdog_hz=1.0, timeout_s=20.0, tool=tool)
        self.state = None
        self.problem = None
        self.noticed_ns = 0
        self._ending = threading.Event()
        self._thread = None

    def begin(self):
        self.arm.connect()
        self.go_on()

    def go_on(self):
        self._ending.clear()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.until(lambda: self.state is not None)

    def clear_errors(self):
        """As a node does it: in the loop's own thread."""
        self.ask(self.arm.clear_errors)

    def ask(self, service):
        """Let the loop's own thread do something else, as a node does with a service."""
        self.hang()
        try:
            service()
        finally:
            self.state = None
            self.go_on()

    def hang(self):
        """The node's loop no longer runs."""
        self._ending.set()
        self._thread.join()

    def _read(self):
        while not self._ending.wait(0.01):
            try:
                self.state = self.arm.read()
            except (DriverTimeout, Stale) as problem:
                self.problem = problem
                self.noticed_ns = self.noticed_ns or time.time_ns()

    def event(self, name):
        self.server.stdin.write(name + "\n")
        self.server.stdin.flush()

    def until(self, true, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, (self.arm.fault, self.state, self.problem)
            time.sleep(0.01)

    def close(self):
        if self._thread is not None:
            self.hang()
        self.arm.close()
        self.server.stdin.close()
        self.server.wait(10)


@pytest.fixture
def cell(opened):
    cell = opened(Cell())
    cell.begin()
    return cell


def test_a_controller_is_examined_and_left_alone(cell):
    assert cell.arm.examine() == f"PolyScope 5.11.0.108249 at {cell.host}, ur-rtde {UR_RTDE}"


def test_force_mode_brings_the_arm_to_its_target(cell):
    start = cell.state.tcp_pose
    np.testing.assert_allclose(start[:3], [0.45, 0.0, 0.2], atol=1e-6)
    np.testing.assert_allclose(np.abs(start[3:]), [1, 0, 0, 0], atol=1e-6)
    target = start + np.array([0.02, -0.01, 0.01, 0, 0, 0, 0])
    cell.arm.command(target)
    cell.until(lambda: np.abs(cell.state.tcp_pose[:3] - target[:3]).max() < 2e-3)


def test_an_arm_that_is_connected_and_read_only_later_has_no_fault(opened):
    cell = opened(Cell())
    cell.arm.connect()
    time.sleep(2.0)  # as of a node that is configured, and activated later
    cell.go_on()
    target = cell.state.tcp_pose + np.array([0.02, 0, 0, 0, 0, 0, 0])
    cell.arm.command(target)
    cell.until(lambda: np.abs(cell.state.tcp_pose[:3] - target[:3]).max() < 2e-3)
    assert cell.arm.fault is None


def test_an_arm_that_holds_stands_without_a_fault_until_it_is_read_again(cell):
    cell.arm.command(cell.state.tcp_pose + np.array([0.2, 0, 0, 0, 0, 0, 0]))
    cell.until(lambda: cell.state.tcp_velocity[0] > 0.01)
    cell.hang()
    cell.arm.hold()  # as a node that is deactivated
    time.sleep(2.0)
    cell.state = None
    cell.go_on()
    assert stands(cell.state)
    start = cell.state.tcp_pose
    time.sleep(0.2)
    np.testing.assert_allclose(cell.state.tcp_pose[:3], start[:3], atol=1e-3)
    target = start + np.array([0.0, 0.02, 0, 0, 0, 0, 0])
    cell.arm.command(target)
    cell.until(lambda: np.abs(cell.state.tcp_pose[:3] - target[:3]).max() < 2e-3)
    assert cell.arm.fault is None


def test_an_arm_that_was_stopped_in_contact_stands_until_it_is_asked_for_motion(cell):
    """A spring that restarts without tension would give way to the contact."""
    start = cell.state.tcp_pose
    cell.arm.command(np.array([*start[:2], -0.01, *start[3:]]))  # into the table
    cell.until(lambda: cell.state.tcp_wrench[2] > 3.0 and stands(cell.state))
    cell.arm.stop()
    time.sleep(1.0)
    assert stands(cell.state)
    stood = cell.state.tcp_pose
    cell.clear_errors()
    for _ in range(50):
        cell.arm.command(stood)  # as a node that holds
        time.sleep(0.02)
    assert np.abs(cell.state.tcp_pose[:3] - stood[:3]).max() < 1e-6
    assert_follows(cell)


def test_errors_that_are_cleared_before_the_arm_is_read_again_stay_cleared(cell):
    cell.arm.stop()
    cell.hang()
    cell.arm.hold()
    cell.arm.clear_errors()
    time.sleep(2.0)
    cell.go_on()
    time.sleep(0.2)
    assert cell.arm.fault is None
    cell.arm.command(cell.state.tcp_pose)


def test_a_stop_ends_force_mode_and_latches(cell):
    cell.arm.command(cell.state.tcp_pose + np.array([0.2, 0, 0, 0, 0, 0, 0]))
    cell.until(lambda: cell.state.tcp_velocity[0] > 0.01)
    cell.arm.stop()
    cell.until(lambda: stands(cell.state))
    with pytest.raises(DriverFault, match="stopped"):
        cell.arm.command(cell.state.tcp_pose)
    cell.clear_errors()
    assert_follows(cell)


def stands(state):
    return np.abs(state.tcp_velocity).max() < 2e-3


def assert_follows(cell):
    """The arm follows its commands, and goes on."""
    target = cell.state.tcp_pose + np.array([0.0, 0.02, 0, 0, 0, 0, 0])
    cell.arm.command(target)
    cell.until(lambda: np.abs(cell.state.tcp_pose[:3] - target[:3]).max() < 2e-3)
    assert cell.arm.fault is None


def test_a_protective_stop_stays_until_a_person_clears_it(cell):
    cell.event("protective_stop")
    cell.until(lambda: cell.arm.fault == "protective stop")
    with pytest.raises(DriverFault, match="protective stop"):
        cell.arm.command(cell.state.tcp_pose)
    with pytest.raises(DriverFault, match=r"cannot be unlocked; got: .* 5s after.*next: look"):
        cell.clear_errors()
    assert cell.arm.fault == "protective stop"
    time.sleep(5.0)  # the controller unlocks it after a while only
    cell.clear_errors()
    assert_follows(cell)


def test_an_arm_without_power_is_not_cleared_and_what_a_person_must_do_is_said(cell):
    cell.event("power_off")
    cell.until(lambda: cell.arm.fault is not None)
    with pytest.raises(DriverFault, match=r"not switched on; got: robot mode 3;.*at the pendant"):
        cell.clear_errors()
    with pytest.raises(DriverFault, match="does not move"):
        cell.arm.command(cell.state.tcp_pose)


def test_a_program_that_does_not_begin_is_no_arm_that_is_cleared(cell):
    cell.event("local")
    cell.arm.stop()
    with pytest.raises(DriverFault, match=r"program does not begin; got: robot mode 7, .*pendant"):
        cell.clear_errors()
    with pytest.raises(DriverFault, match="does not move"):
        cell.arm.command(cell.state.tcp_pose)


def test_the_force_sensor_is_zeroed_and_the_arm_follows_as_before(opened):
    cell = opened(Cell(sensor_offset=1.0))
    cell.begin()
    assert cell.state.tcp_wrench[2] == 1.0
    cell.ask(cell.arm.zero_ft)
    cell.until(lambda: not cell.state.tcp_wrench.any())
    assert_follows(cell)
    cell.arm.stop()
    with pytest.raises(DriverFault, match="not zeroed; got: stopped"):
        cell.ask(cell.arm.zero_ft)


def test_the_controllers_watchdog_ends_the_program_when_the_node_hangs(cell):
    cell.arm.command(cell.state.tcp_pose + np.array([0, 0.3, 0, 0, 0, 0, 0]))
    cell.until(lambda: cell.state.tcp_velocity[1] > 0.01)
    cell.hang()
    time.sleep(2.0)  # the driver kicks for 0.3 s more, and the watchdog waits for 1 s
    state = cell.arm.read()
    assert stands(state)
    cell.until(lambda: cell.arm.read() and cell.arm.fault is not None)
    with pytest.raises(DriverFault):
        cell.arm.command(state.tcp_pose)


def test_a_silent_controller_is_noticed_and_its_last_state_keeps_its_stamp(cell):
    cell.event("cut_connection")
    cell.until(lambda: cell.problem is not None)
    assert isinstance(cell.problem, Stale)
    assert cell.noticed_ns - cell.state.stamp_ns > 0.19e9


@pytest.mark.parametrize(
    ("tcp", "payload_kg", "problem"),
    [
        (
            [0, 0, 0.15, 0, 0, 0, 1],
            0.01,
            r"another TCP .* got: \[0\.0, 0\.0, 0\.0, .* 0\.15",
        ),
        ([0, 0, 0, 0, 0, 0, 1], 1.2, r"another payload .* got: 0\.00 kg; expected: 1\.20 kg"),
    ],
)
def test_a_controller_with_another_tool_is_refused_when_it_is_connected(
    tcp, payload_kg, problem, opened
):
    cell = opened(Cell(tool=Tool(tcp, payload_kg)))
    with pytest.raises(DriverError, match=problem):
        cell.begin()
    cell.arm.tool = Tool([0, 0, 0, 0, 0, 0, 1], 0.01)
    cell.begin()
