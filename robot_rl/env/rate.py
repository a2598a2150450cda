"""The two clocks of the control loop: stepped for simulation, realtime for robots."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What paces `RobotEnv`: one call a control period."""

    period: float
    """Control period [s]."""

    def start(self) -> None:
        """Begin an episode: the next tick is one period from now."""

    def wait(self) -> float:
        """Wait for the next tick; returns how late this one was reached [s], never negative."""

    def since_tick(self) -> float:
        """Time since the present tick was due [s]."""

    def now_ns(self) -> int:
        """Time for stamps and records [ns]."""


class SteppedClock:
    """Simulated time: nothing sleeps, every tick is on time, and runs are reproducible.

    Args:
        control_rate_hz: Ticks per second of simulated time.
    """

    def __init__(self, control_rate_hz: float) -> None:
        """See the class."""
        self.period = 1.0 / control_rate_hz
        self._ticks = 0

    def start(self) -> None:
        """Begin an episode; simulated time goes on across episodes."""
        self._ticks += 1

    def wait(self) -> float:
        """Advance simulated time by one period; never late."""
        self._ticks += 1
        return 0.0

    def since_tick(self) -> float:
        """Zero: deciding takes no simulated time; delays are modelled in whole steps."""
        return 0.0

    def now_ns(self) -> int:
        """Simulated time since the clock was made [ns]."""
        return round(self._ticks * self.period * 1e9)


class RealtimeClock:
    """Wall time with absolute deadlines, so that lateness does not add up.

    A missed tick is not made up for: the next one is a whole period after the late one, because
    two commands in quick succession would move a robot twice as fast.

    Args:
        control_rate_hz: Ticks per second.
    """

    def __init__(self, control_rate_hz: float) -> None:
        """See the class."""
        self.period = 1.0 / control_rate_hz
        self._next = time.monotonic()

    def start(self) -> None:
        """Begin an episode now."""
        self._next = time.monotonic() + self.period

    def wait(self) -> float:
        """Sleep until the next tick; returns the lateness [s]."""
        remaining = self._next - time.monotonic()
        if remaining > 0.0:
            time.sleep(remaining)
        now = time.monotonic()
        lateness = max(0.0, now - self._next)
        self._next = (self._next if lateness < self.period else now) + self.period
        return lateness

    def since_tick(self) -> float:
        """Time since the present tick was due [s], its lateness included."""
        return time.monotonic() - (self._next - self.period)

    def now_ns(self) -> int:
        """System time [ns], for records and matching only."""
        return time.time_ns()


def make_clock(name: str, control_rate_hz: float) -> Clock:
    """Make the clock of a configuration's `clock: stepped | realtime`.

    Raises:
        ValueError: Another name.
    """
    clocks: dict[str, type[SteppedClock | RealtimeClock]] = {
        "stepped": SteppedClock,
        "realtime": RealtimeClock,
    }
    if name not in clocks:
        raise ValueError(f"unknown clock; got: {name!r}; expected: one of {sorted(clocks)}")
    return clocks[name](control_rate_hz)
