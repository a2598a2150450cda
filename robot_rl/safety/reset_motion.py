"""Reset motion under the guard: retract, then move slowly to where episodes begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.safety import rotations
from robot_rl.safety.commands import Mode, checked_pose
from robot_rl.safety.limits import Vector, bounded, check_positive

if TYPE_CHECKING:
    from robot_rl.safety.guard import ArmGuard

ATTEMPTS = 2
# Between them.
_PAUSE_SECONDS = 1.0
# Longest time for a part of the way: this many times what its length takes, and some seconds.
_PATIENCE = 2.0
_PATIENCE_SECONDS = 3.0


@dataclass(frozen=True)
class ResetOptions:
    """How a reset moves."""

    # Along the tool's own -z.
    retract_distance: float = bounded(0.08, "how far the tool is drawn back first [m]", 1e-3, 0.5)
    speed_translation: float = bounded(0.08, "speed of a reset [m/s]", 1e-3, 0.25)
    speed_rotation: float = bounded(0.4, "speed of its rotation [rad/s]", 1e-3, 1.0)
    tolerance_translation: float = bounded(0.005, "distance that counts as there [m]", 5e-4, 0.1)
    tolerance_rotation: float = bounded(0.05, "angle that counts as there [rad]", 5e-3, 0.5)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"limit {name!r}", value)


def checked_reset_pose(pose: npt.ArrayLike) -> Vector:
    """The pose (7,) that the parameter `reset.pose` holds, or `CommandRefused`."""
    return checked_pose(pose, "reset.pose", tolerance=1e-3)


class ResetOutcome(NamedTuple):
    """How a reset ended, and what a person has to do if it failed."""

    success: bool
    message: str


class Resets:
    """Moves an arm to a pose: back along the tool, across, and forward along the tool again.

    It stops the arm and asks a person where the arm hit something, or twice did not arrive.

    Args:
        guard: Of the arm, which asks for the `goal`; the way stays in its workspace.
        options: How to move.

    Attributes:
        options: See `ResetOptions`.
        busy: Whether a reset is under way.
    """

    def __init__(self, guard: ArmGuard, options: ResetOptions) -> None:
        self.options = options
        self.busy = False
        self._guard = guard
        self._pose: Vector = np.empty(7)
        self._waypoints: list[Vector] | None = None  # None: this attempt has not moved yet
        self._failure: str | None = None  # what has stopped this attempt
        self._begins = self._until = math.inf  # when it moves, and has to be there [s]

    def begin(self, pose: npt.ArrayLike) -> None:
        """Start a reset to `pose` (7,), pulled into the workspace, or raise `CommandRefused`."""
        inside = self._guard.inside(checked_reset_pose(pose))
        self._attempt(inside, 1)

    def give_up(self, reason: str) -> ResetOutcome | None:
        """End a reset that is under way, without another attempt; None if there is none."""
        if not self.busy:
            return None
        self.busy = False
        self._guard.hold(reason)
        return ResetOutcome(False, f"the reset was given up: {reason}")

    def poll(self) -> ResetOutcome | None:
        """Look, after each tick of the guard, whether the reset ended; None while it has not."""
        guard = self._guard
        if not self.busy or guard.mode is Mode.RESET:
            return None
        failed = self._failure is not None and guard.mode is not Mode.STOPPED
        if failed and self._may_be_repeated and self._attempts < ATTEMPTS:
            self._failure = None  # should the guard refuse, the reset is given up
            self._attempt(self._pose, self._attempts + 1, _PAUSE_SECONDS)
            return None
        self.busy = False
        if self._arrived:
            return ResetOutcome(True, "the arm is at its reset pose")
        if not failed:
            return ResetOutcome(False, f"the reset was given up: {guard.reason}")
        message = (
            f"the reset failed{' twice, at last' if self._attempts > 1 else ''}: {self._failure}; "
            "next: free the arm, then call the service clear_errors and reset again"
        )
        guard.stop(message)
        return ResetOutcome(False, message)

    # -- for the guard ----------------------------------------------------------------------------

    def goal(self, now: float, pose: Vector) -> Vector | None:
        """The waypoint (7,) to move to from `pose` (7,); None when arrived or out of time."""
        self._begins = min(self._begins, now + self._pause)
        if now < self._begins:
            return pose
        if self._waypoints is None:
            away = self._retracted(pose)
            room, wanted = rotations.apart(pose, away)[0], self.options.retract_distance
            if room < 0.5 * wanted:
                self._may_be_repeated = False
                self._failure = (
                    f"only {1e3 * room:.0f} of {1e3 * wanted:.0f} mm fit into the workspace to draw"
                    " the tool back by; move the arm, widen the workspace or shorten"
                    " reset.retract_distance"
                )
                return None
            self._waypoints = [away, self._retracted(self._pose), self._pose]
            self._until = now + self._patience(pose)
        while self._waypoints and self._is_at(pose, self._waypoints[0]):
            self._waypoints.pop(0)
            self._until = now + self._patience(pose)
        if not self._waypoints:
            self._arrived = True
            return None
        if now > self._until:
            distance, _ = rotations.apart(pose, self._waypoints[0])
            self._failure = f"the arm did not get there in time, {distance * 1e3:.0f} mm are left"
            return None
        return self._waypoints[0]

    def obstructed(self, reason: str) -> bool:
        """A limit has stopped the motion; returns whether it ends: not if it has not begun."""
        if self._waypoints is not None:
            self._failure, self._may_be_repeated = reason, False
        return self._waypoints is not None

    def _attempt(self, pose: Vector, number: int, pause: float = 0.0) -> None:
        """Begin after `pause` [s], in which the arm yields to what it touches."""
        self._guard.follow_route(self)
        self._pose, self._attempts, self._pause = pose, number, pause
        self.busy, self._arrived = True, False
        self._waypoints = self._failure = None
        self._may_be_repeated = True  # by itself: not after it hit something
        self._begins = self._until = math.inf

    def _retracted(self, pose: Vector) -> Vector:
        back = np.array([0.0, 0.0, -self.options.retract_distance, 0.0, 0.0, 0.0, 1.0])
        return self._guard.inside(rotations.compose(pose, back))

    def _is_at(self, pose: Vector, waypoint: Vector) -> bool:
        distance, angle = rotations.apart(pose, waypoint)
        options = self.options
        return distance <= options.tolerance_translation and angle <= options.tolerance_rotation

    def _patience(self, pose: Vector) -> float:
        if not self._waypoints:
            return math.inf
        distance, angle = rotations.apart(pose, self._waypoints[0])
        options = self.options
        seconds = max(distance / options.speed_translation, angle / options.speed_rotation)
        return _PATIENCE * seconds + _PATIENCE_SECONDS
