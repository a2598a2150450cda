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


class ResetMotion:
    """The way to a pose: back along the tool, across, and forward along the tool again.

    Args:
        pose: Where to (7,), base frame.
        options: See `ResetOptions`.
        guard: Whose workspace the way stays in.
        pause: Time before it begins, in which the arm yields to what it touches [s].

    Attributes:
        arrived: Whether the arm is at the pose.
        failure: What stopped the motion, None while nothing has.
        may_be_repeated: Whether it may be tried once more by itself: not after it hit something.
    """

    def __init__(
        self, pose: Vector, options: ResetOptions, guard: ArmGuard, pause: float = 0.0
    ) -> None:
        self.speed_translation = options.speed_translation
        self.speed_rotation = options.speed_rotation
        self.arrived = False
        self.failure: str | None = None
        self.may_be_repeated = True
        self._options = options
        self._guard = guard
        self._pose = pose
        self._waypoints: list[Vector] | None = None
        self._pause = pause
        self._begins = math.inf
        self._until = math.inf

    def goal(self, now: float, pose: Vector) -> Vector | None:
        """The waypoint (7,) to move to from `pose` (7,); None when arrived or out of time."""
        self._begins = min(self._begins, now + self._pause)
        if now < self._begins:
            return pose
        if self._waypoints is None:
            away = self._retracted(pose)
            room, wanted = rotations.apart(pose, away)[0], self._options.retract_distance
            if room < 0.5 * wanted:
                self.may_be_repeated = False
                self.failure = (
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
            self.arrived = True
            return None
        if now > self._until:
            distance, _ = rotations.apart(pose, self._waypoints[0])
            self.failure = f"the arm did not get there in time, {distance * 1e3:.0f} mm are left"
            return None
        return self._waypoints[0]

    def obstructed(self, reason: str) -> bool:
        """A limit has stopped the motion; returns whether it ends: not if it has not begun."""
        if self._waypoints is not None:
            self.failure, self.may_be_repeated = reason, False
        return self._waypoints is not None

    def _retracted(self, pose: Vector) -> Vector:
        back = np.array([0.0, 0.0, -self._options.retract_distance, 0.0, 0.0, 0.0, 1.0])
        return self._guard.inside(rotations.compose(pose, back))

    def _is_at(self, pose: Vector, waypoint: Vector) -> bool:
        distance, angle = rotations.apart(pose, waypoint)
        options = self._options
        return distance <= options.tolerance_translation and angle <= options.tolerance_rotation

    def _patience(self, pose: Vector) -> float:
        if not self._waypoints:
            return math.inf
        distance, angle = rotations.apart(pose, self._waypoints[0])
        seconds = max(distance / self.speed_translation, angle / self.speed_rotation)
        return _PATIENCE * seconds + _PATIENCE_SECONDS


class Resets:
    """Resets an arm; stops it and asks a person where it hit something or twice did not arrive."""

    def __init__(self, guard: ArmGuard, options: ResetOptions) -> None:
        self._guard = guard
        self._options = options
        self._motion: ResetMotion | None = None
        self._pose: Vector | None = None
        self._failures = 0

    @property
    def busy(self) -> bool:
        """Whether a reset is under way."""
        return self._motion is not None

    def begin(self, pose: npt.ArrayLike) -> None:
        """Start a reset to `pose` (7,), pulled into the workspace, or raise `CommandRefused`."""
        inside = self._guard.inside(checked_reset_pose(pose))
        motion = ResetMotion(inside, self._options, self._guard)
        self._guard.follow_route(motion)
        self._motion, self._pose, self._failures = motion, inside, 0

    def give_up(self, reason: str) -> ResetOutcome | None:
        """End a reset that is under way, without another attempt; None if there is none."""
        if self._motion is None:
            return None
        self._motion = None
        self._guard.hold(reason)
        return ResetOutcome(False, f"the reset was given up: {reason}")

    def poll(self) -> ResetOutcome | None:
        """Look, after each tick of the guard, whether the reset ended; None while it has not."""
        motion, guard = self._motion, self._guard
        if motion is None or guard.mode is Mode.RESET:
            return None
        self._motion = None
        if motion.arrived:
            return ResetOutcome(True, "the arm is at its reset pose")
        if motion.failure is None or guard.mode is Mode.STOPPED:
            return ResetOutcome(False, f"the reset was given up: {guard.reason}")
        self._failures += 1
        assert self._pose is not None
        if motion.may_be_repeated and self._failures < ATTEMPTS:
            self._motion = ResetMotion(self._pose, self._options, guard, _PAUSE_SECONDS)
            guard.follow_route(self._motion)
            return None
        message = (
            f"the reset failed{' twice, at last' if self._failures > 1 else ''}: {motion.failure}; "
            "next: free the arm, then call the service clear_errors and reset again"
        )
        guard.stop(message)
        return ResetOutcome(False, message)
