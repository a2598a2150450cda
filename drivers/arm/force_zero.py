"""When a force sensor may be zeroed: while the arm stands under a small, steady force."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol, runtime_checkable

import numpy as np

from drivers.arm.base import ArmState
from drivers.errors import DriverFault

_REST_SECONDS = 0.5
_REST_SPEED = 0.002  # m/s
# UR's data sheets: a measured force is good to 3.5 to 5.5 N.
_STEADY_FORCE = 5.0  # N, between the smallest and the largest along an axis
_LARGEST_OFFSET = 20.0  # N: more is no drift, but a contact or a wrong payload


@runtime_checkable
class ForceSensor(Protocol):
    """An arm driver whose force sensor drifts, and can be zeroed."""

    def zero_ft(self) -> None:
        """Let the sensor read zero from now on; the arm does not move, and holds where it is.

        Raises:
            DriverError: It was not done.
        """


class Rest:
    """The newest measurements, and whether the arm was at rest in them.

    Args:
        rate_hz: How often the arm is measured.
    """

    def __init__(self, rate_hz: float) -> None:
        self._states: deque[ArmState] = deque(maxlen=max(2, round(_REST_SECONDS * rate_hz)))

    def take(self, state: ArmState) -> None:
        """Take a measurement in."""
        self._states.append(state)

    def forget(self) -> None:
        """Nothing is known any more of how the arm stood."""
        self._states.clear()

    def force(self) -> float:
        """The mean force that a zeroing would take away [N].

        A light, steady contact cannot be told from a sensor that has drifted.

        Raises:
            DriverFault: The arm was not at rest, or that is no force that a sensor drifts by.
        """
        if len(self._states) < (self._states.maxlen or 0):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{len(self._states)} measurements",
                expected=f"{_REST_SECONDS:g} s of them, {self._states.maxlen}",
                hint="call it again",
            )
        forces = np.array([state.tcp_wrench[:3] for state in self._states])
        speed = max(math.hypot(*state.tcp_velocity[:3]) for state in self._states)
        force, change = math.hypot(*forces.mean(axis=0)), float(np.ptp(forces, axis=0).max())
        # So, for one of them may be NaN.
        if not (force <= _LARGEST_OFFSET and change <= _STEADY_FORCE and speed <= _REST_SPEED):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{force:.1f} N that changed by {change:.1f} N, at {speed * 1e3:.1f} mm/s",
                expected=f"at most {_LARGEST_OFFSET:g} N, {_STEADY_FORCE:g} N and"
                f" {_REST_SPEED * 1e3:g} mm/s for {_REST_SECONDS:g} s",
                hint="let nothing touch the tool, and see that its payload is set right",
            )
        return force
