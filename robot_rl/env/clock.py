"""The two clocks of the control loop: stepped for simulation, realtime for robots."""

from __future__ import annotations

import math
import time
from typing import Any

from robot_rl.errors import RobotRLError


class SteppedClock:
    """Simulated time: nothing sleeps, every tick is on time, and runs are reproducible."""

    def __init__(self, control_rate_hz: float) -> None:
        self.period = 1.0 / control_rate_hz  # of the control loop [s]
        self._ticks = 0

    def start(self) -> None:
        """Begin an episode at time zero, so that its stamps follow from its seed alone."""
        self._ticks = 0

    def wait(self) -> float:
        """Advance simulated time by one period; returns the lateness [s]: none."""
        self._ticks += 1
        return 0.0

    def since_tick(self) -> float:
        """Zero: deciding takes no simulated time; delays are modelled in whole steps."""
        return 0.0

    def now_ns(self) -> int:
        """Simulated time since the episode began [ns], for stamps and records."""
        return round(self._ticks * self.period * 1e9)


class RealtimeClock:
    """Wall time with absolute deadlines, so that lateness does not add up.

    After a tick that is late by half a period or more, the next one is a whole period later: two
    commands in quick succession would move a robot twice as fast.
    """

    def __init__(self, control_rate_hz: float) -> None:
        self.period = 1.0 / control_rate_hz  # of the control loop [s]
        self._due = self._next = time.monotonic()

    def start(self) -> None:
        """Begin an episode: the next tick is one period from now."""
        self._due = time.monotonic()
        self._next = self._due + self.period

    def wait(self) -> float:
        """Sleep until the next tick; returns how late it was reached [s], never negative."""
        remaining = self._next - time.monotonic()
        if remaining > 0.0:
            time.sleep(remaining)
        now = time.monotonic()
        self._due = self._next
        lateness = max(0.0, now - self._due)
        self._next = (self._due if lateness < 0.5 * self.period else now) + self.period
        return lateness

    def since_tick(self) -> float:
        """Time since the present tick was due [s], its lateness included."""
        return time.monotonic() - self._due

    def now_ns(self) -> int:
        """System time [ns], for records and matching only."""
        return time.time_ns()


Clock = SteppedClock | RealtimeClock


def make_clock(name: str, control_rate_hz: Any) -> Clock:
    """Make the clock of a configuration's `clock: stepped | realtime`, or raise `RobotRLError`."""
    if name not in ("stepped", "realtime"):
        raise RobotRLError("unknown clock", got=name, expected="stepped or realtime")
    if not (isinstance(control_rate_hz, float | int) and 0.0 < control_rate_hz < math.inf):
        raise RobotRLError(
            "control_rate_hz is not a positive number",
            got=control_rate_hz,
            expected="a finite number > 0",
        )
    return (SteppedClock if name == "stepped" else RealtimeClock)(float(control_rate_hz))
