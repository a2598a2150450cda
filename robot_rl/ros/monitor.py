"""Watches the age of all sensors from a thread of its own, however busy the control loop is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros.errors import RosUnavailable
from robot_rl.ros.sensors import Sensor, first_trouble

_PERIOD_SECONDS = 0.01


class SensorMonitor:
    """Calls `on_late` once, at the latest 10 ms after a watched topic has become too old.

    Args:
        sensors: What is watched.
        on_late: Called in the monitor's thread.
    """

    def __init__(
        self, sensors: Sequence[Sensor], on_late: Callable[[RobotInterrupted], None]
    ) -> None:
        """See the class."""
        self._sensors = tuple(sensors)
        self._on_late = on_late
        self._problem: BaseException | None = None
        # No event: an exception that a signal raises inside of `set` would keep its lock for ever.
        self._armed = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sensor-monitor", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Watch from now on, until something is late."""
        self._armed = True

    def disarm(self) -> None:
        """Stop watching."""
        self._armed = False

    def check(self) -> None:
        """Look whether the thread still watches.

        Raises:
            RosUnavailable: It does not; the error that ended it is the cause.
        """
        if self._problem is not None:
            raise RosUnavailable(
                "nobody watches the sensors any more", got=repr(self._problem)
            ) from self._problem

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._ending.wait(_PERIOD_SECONDS):
                if self._armed:
                    self._look()
        except BaseException as problem:  # raised to the owner by `check`
            self._problem = problem

    def _look(self) -> None:
        problem = first_trouble(self._sensors)
        if problem is not None and self._armed:
            self._armed = False
            self._on_late(problem)
