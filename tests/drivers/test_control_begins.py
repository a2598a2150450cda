"""No driver moves or controls an arm before it is commanded, and old states look old."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest

from drivers.arm.base import StateClock
from drivers.arm.franka import FrankaArm
from drivers.base import DriverFault, Stale
from robot_rl.processes.waiting import wait_until

POSE = np.array([0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0])


def listening(port):
    """An address of this machine where somebody listens."""
    host = f"127.8.{1 + time.monotonic_ns() % 250}.{1 + time.monotonic_ns() // 1000 % 250}"
    return host, socket.create_server((host, port))


class ControlUnit:
    """What franky asks of a control unit, whose state can be kept from changing."""

    def __init__(self, franky):
        self._franky, self.frozen, self.started = franky, None, []
        self.is_in_control, self.model = False, SimpleNamespace()

    @property
    def state(self):
        now = time.monotonic() if self.frozen is None else self.frozen
        pose = self._franky.Affine(POSE[:3], POSE[3:])
        return SimpleNamespace(
            time=SimpleNamespace(to_sec=lambda: round(now, 3)),
            robot_mode=self._franky.RobotMode.Idle,
            q=np.zeros(7),
            dq=np.zeros(7),
            O_T_EE=pose,
            O_dP_EE_est=None,
            O_F_ext_hat_K=np.zeros(6),
            current_errors="",
            last_motion_errors="",
        )

    @property
    def current_pose(self):
        return SimpleNamespace(end_effector_pose=self._franky.Affine(POSE[:3], POSE[3:]))

    def set_collision_behavior(self, torque, force):
        self.started.append("collision behavior")

    def move(self, motion, asynchronous):
        self.started.append(type(motion).__name__)
        self.is_in_control = True

    def join_motion(self):
        self.is_in_control = False

    def recover_from_errors(self):
        return True


@pytest.fixture
def franka(monkeypatch):
    franky = pytest.importorskip("franky", reason="needs the extra `franka`")
    unit = ControlUnit(franky)
    monkeypatch.setattr(franky, "Robot", lambda host: unit)
    host, server = listening(1337)
    arm = FrankaArm(host=host)
    with server:
        arm.connect()
        yield arm, unit
        arm.close()


def test_a_franka_is_controlled_from_its_first_target_on(franka):
    arm, unit = franka
    arm.read()
    arm.hold()
    assert unit.started == []
    arm.command(POSE)
    arm.command(POSE)
    assert unit.started == ["collision behavior", "CartesianImpedanceTrackingMotion"]
    arm.stop()
    with pytest.raises(DriverFault, match="stopped"):
        arm.command(POSE)
    unit.started.clear()
    arm.clear_errors()
    arm.read()
    arm.hold()
    assert unit.started == []
    arm.command(POSE)
    assert "CartesianImpedanceTrackingMotion" in unit.started


def test_a_frankas_state_that_stays_the_same_keeps_its_stamp_and_is_stale_soon(franka):
    arm, unit = franka
    unit.frozen = 100.0
    first = arm.read().stamp_ns
    time.sleep(0.03)
    assert arm.read().stamp_ns == first

    def is_stale():
        try:
            return arm.read().stamp_ns != first
        except Stale:
            return True

    assert wait_until(is_stale, 2.0)
    with pytest.raises(Stale, match="Franka arm's state is too old"):
        arm.read()
    unit.frozen = None
    assert arm.read().stamp_ns > first


def test_states_are_stamped_when_they_are_first_seen_and_what_is_no_time_is_no_state():
    clock = StateClock()
    assert clock.take(1.0)
    stamp = clock.stamp_ns
    for seconds in (1.0, float("nan"), float("inf")):
        assert not clock.take(seconds)
        assert clock.stamp_ns == stamp
    assert clock.take(0.2)  # it was switched off and on
    assert clock.stamp_ns > stamp
    with pytest.raises(Stale, match="the state is too old"):
        StateClock().check("the state", 10.0)
