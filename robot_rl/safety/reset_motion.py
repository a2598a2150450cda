"""Reset motion under the guard: retract, then move slowly to where episodes begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.safety import rotations
from robot_rl.safety.commands import CommandRefused, Mode, checked_pose
from robot_rl.safety.guard import ArmGuard
from robot_rl.safety.limits import ArmLimits, JointArmLimits, Vector
from robot_rl.safety.reset_way import (
    ForwardKinematics,
    JointTargetWay,
    JointWay,
    ResetOptions,
    StraightWay,
    share_of_way,
    tool_pose,
)

ATTEMPTS = 2
# Longest time for a part of the way, over that of its length at full speed, beside `patience_s`.
_PATIENCE = 2.0


def checked_reset_pose(pose: npt.ArrayLike) -> Vector:
    """The pose (7,) of the parameter `reset.pose`, or `CommandRefused`."""
    return checked_pose(pose, "reset.pose", tolerance=1e-3)


def checked_reset_joints(
    values: npt.ArrayLike, joints: int, limits: ArmLimits | JointArmLimits
) -> Vector:
    """The waypoints (k, joints) of the parameter `reset.joints`, given in one row.

    Raises `CommandRefused` for another number of joints, or positions beyond their limits.
    """
    flat = np.asarray(values, np.float64).ravel()
    if not flat.size or flat.size % joints or not np.isfinite(flat).all():
        raise CommandRefused(
            "malformed",
            "reset.joints holds no waypoints",
            got=flat.tolist(),
            expected=f"{joints} finite numbers for each [rad]",
        )
    waypoints = flat.reshape(-1, joints)
    if limits.joint_low:
        low = np.array(limits.joint_low) + limits.joint_margin
        high = np.array(limits.joint_high) - limits.joint_margin
        outside = np.argwhere((waypoints < low) | (waypoints > high))
        if len(outside):
            waypoint, joint = outside[0]
            raise CommandRefused(
                "joint",
                f"waypoint {waypoint + 1} of reset.joints is beyond the limits of joint {joint}",
                got=float(waypoints[waypoint, joint]),
                expected=f"{low[joint]:.3f} to {high[joint]:.3f} [rad]",
                hint="give radians, not degrees; or teach it again, farther from the limit",
            )
    return waypoints


def sole_reset_end(pose: Sequence[float] | None, joints: npt.ArrayLike | None) -> Any:
    """The given one of the parameters `reset.pose` and `reset.joints`, or `CommandRefused`."""
    given = [end for end in (pose, joints) if end is not None and np.size(end)]
    if len(given) != 1:
        problem = "a reset needs one of the parameters reset.pose and reset.joints"
        got, hint = "both" if given else "neither", "see hardware/arms.md, section Resets"
        raise CommandRefused("malformed", problem, got=got, hint=hint)
    return given[0]


class ResetOutcome(NamedTuple):
    """The end of a reset; after a failure the message says what a person has to do."""

    success: bool
    message: str


_Part = StraightWay | JointWay | JointTargetWay


class Resets:
    """Moves an arm to where episodes begin: back along the tool, and then there.

    To a pose it moves across, and forward along the tool again; to joint positions by its joints,
    through all waypoints. Each part goes from rest to rest with bounded jerk, and waits for an arm
    that does not keep up. The arm stops and a person is asked where it hit something, twice did not
    arrive, or would leave its limits, which is checked before it moves. A reset that was given up
    on its way continues where it left the arm: the tool is drawn back no farther.

    Args:
        guard: Of the arm, which asks for the `goal`; the way stays in its workspace.
        options: How to move.
        forward: The arm's kinematics; None where it is moved to poses alone.

    Attributes:
        options: See `ResetOptions`.
        busy: Whether a reset is under way.
    """

    def __init__(
        self, guard: ArmGuard, options: ResetOptions, forward: ForwardKinematics | None = None
    ) -> None:
        self.options = options
        self.busy = False
        self._guard = guard
        self._forward = forward
        self._end: Vector = np.empty(7)
        # Makers of the parts that follow, called with the arm's place then; None before it moves.
        self._ahead: list[Callable[[Vector, Vector], _Part]] | None = None
        self._part: _Part | None = None  # the part that is under way
        self._seconds = 0.0  # duration of the part at its largest speed
        self._moved = self._waited = 0.0  # seconds of motion, and all seconds, since its start
        self._goal: Vector = np.empty(7)
        self._failure: str | None = None  # why this attempt ended
        self._away: Vector | None = None  # where the tool is drawn back to
        # Where the arm is on its way, and the place above it where its tool is free.
        self._left: tuple[Vector, Vector] | None = None

    def begin(self, end: npt.ArrayLike) -> None:
        """Start a reset, or raise `CommandRefused`.

        Args:
            end: A pose (7,), which is pulled into the workspace; or waypoints in joint positions
                (k, n) [rad], of `checked_reset_joints`, the last of which is the end.
        """
        by_joints = np.ndim(end) == 2
        goal = np.array(end) if by_joints else self._guard.inside(checked_reset_pose(end))
        self._attempt(goal, 1)

    def give_up(self, reason: str) -> ResetOutcome | None:
        """End a reset that is under way, without another attempt; None without one."""
        if not self.busy:
            return None
        self.busy = False
        self._guard.hold(reason)
        return ResetOutcome(False, f"the reset was given up: {reason}")

    def poll(self) -> ResetOutcome | None:
        """The outcome once the reset has ended, else None; called after each tick of the guard."""
        guard = self._guard
        if not self.busy or guard.mode is Mode.RESET:
            return None
        failed = self._failure is not None and guard.mode is not Mode.STOPPED
        if self._arrived or failed or guard.mode is Mode.STOPPED:  # it may have hit something
            self._left = None
        if failed and self._may_be_repeated and self._attempts < ATTEMPTS:
            self._failure = None  # should the guard refuse, the reset is given up
            self._attempt(self._end, self._attempts + 1, self.options.pause_s)
            return None
        self.busy = False
        if self._arrived:
            return ResetOutcome(True, "the arm is where a reset ends")
        if not failed:
            return ResetOutcome(False, f"the reset was given up: {guard.reason}")
        message = (
            f"the reset failed{' twice, at last' if self._attempts > 1 else ''}: {self._failure}; "
            "next: free the arm, then call the service clear_errors and reset again"
        )
        guard.stop(message)
        return ResetOutcome(False, message)

    # -- for the guard ----------------------------------------------------------------------------

    def goal(self, elapsed: float, pose: Vector, joints: Vector) -> Vector | None:
        """The next goal (7,); None after arrival or a failure.

        `elapsed` [s] have passed since the last call; the arm is measured at a pose (7,) and at
        joint positions (n,) [rad].
        """
        self._pause -= elapsed
        if self._pause > 0.0:
            return pose
        if self._ahead is None and (problem := self._plan(pose, joints)) is not None:
            self._fail(problem)
        if self._failure is not None:
            return None
        guard, options, part = self._guard, self.options, self._part
        if part is not None:
            self._waited += elapsed
            # Not ahead of an arm that is held back: the remaining way would become another one.
            if not guard.limits.led(self._goal, pose)[1]:
                self._moved += elapsed
            if self._share == 1.0 and part.left(pose, joints, options) is None:
                part = self._away = None  # it is in the air from now on
        self._left = (pose, pose if self._away is None else self._away)
        if part is None:
            if not self._ahead:
                self._arrived = True
                return None
            part = self._part = self._ahead.pop(0)(pose, joints)
            self._seconds, self._moved, self._waited = part.seconds(options), 0.0, 0.0
        if isinstance(part, JointWay) and (problem := part.problem(pose, joints)) is not None:
            self._fail(problem)
        elif self._waited > _PATIENCE * self._seconds + options.patience_s:
            left = part.left(pose, joints, options) or "it was too slow"
            self._failure = f"the arm did not get there in time: {left}"
        self._goal = guard.inside(part.at(self._share, pose, joints))
        return None if self._failure is not None else self._goal

    def obstructed(self, reason: str) -> bool:
        """Note that a limit stopped the motion; returns whether that ends it."""
        if self._ahead is not None:
            self._fail(reason)
        return self._ahead is not None

    def _attempt(self, end: Vector, number: int, pause: float = 0.0) -> None:
        """Start after `pause` [s], in which the arm yields to what it touches."""
        self._guard.follow_route(self)
        self._end, self._attempts, self._pause = end, number, pause
        self.busy, self._arrived = True, False
        self._ahead = self._part = self._failure = None
        self._may_be_repeated = True  # by itself: not after it hit something

    def _plan(self, pose: Vector, joints: Vector) -> str | None:
        """Plan the way from where the arm is; returns why it is not allowed, or None."""
        away, left, self._left = None, self._left, None
        if left and StraightWay(pose, left[0]).left(pose, joints, self.options) is None:
            away = left[1]  # where a reset that was given up drew the tool back to
        else:
            away = self._retracted(pose)
            room, wanted = rotations.apart(pose, away)[0], self.options.retract_distance
            if room < 0.5 * wanted:
                return (
                    f"only {1e3 * room:.0f} of {1e3 * wanted:.0f} mm fit into the workspace to"
                    " draw the tool back by; move the arm, widen the workspace or shorten"
                    " reset.retract_distance"
                )
        self._away = away
        if self._end.ndim == 1:
            ends = (away, self._retracted(self._end), self._end)
            self._ahead = [partial(self._straight, end) for end in ends]
            return None
        numbers = range(len(self._end))
        for number in numbers:  # the way to the first is looked at when the tool is drawn back
            way = self._way(number, self._end[max(0, number - 1)], pose, joints)
            if (problem := way.beyond(self._pose_limits, self.options)) is not None:
                return problem
        ways = [partial(self._by_joints, number) for number in numbers]
        self._ahead = [partial(self._straight, away), *ways]
        return None

    def _fail(self, problem: str) -> None:
        """End this reset: another attempt would meet the same."""
        self._failure, self._may_be_repeated = problem, False

    @property
    def speed(self) -> Vector:
        """How fast the target may go on the way, as `speed` of the guard's limits."""
        return np.array([self.options.speed_translation, self.options.speed_rotation])

    @property
    def _share(self) -> float:
        return share_of_way(self._moved, self._seconds)

    def _straight(self, end: Vector, pose: Vector, joints: Vector) -> _Part:
        target = self._guard.target  # where the arm is led to now
        return StraightWay(pose if target is None else target, end)

    def _by_joints(self, number: int, pose: Vector, joints: Vector) -> _Part:
        way = self._way(number, joints, pose, joints)
        if (problem := way.beyond(self._pose_limits, self.options)) is not None:
            self._fail(problem)
        return way

    def _way(self, number: int, start: Vector, pose: Vector, joints: Vector) -> JointWay:
        """From joint positions to a waypoint, with the tool of an arm that is measured so."""
        assert self._forward is not None, "an arm without kinematics goes to poses alone"
        tool, is_last = tool_pose(self._forward, pose, joints), number == len(self._end) - 1
        name = f"waypoint {number + 1} of reset.joints"
        return JointWay(self._forward, start, self._end[number], tool, name, is_last)

    @property
    def _pose_limits(self) -> ArmLimits:
        limits = self._guard.limits
        assert isinstance(limits, ArmLimits), "JointResets has another plan"
        return limits

    def _retracted(self, pose: Vector) -> Vector:
        back = np.array([0.0, 0.0, -self.options.retract_distance, 0.0, 0.0, 0.0, 1.0])
        return self._guard.inside(rotations.compose(pose, back))


class JointResets(Resets):
    """The same for an arm that takes joint targets: straight from waypoint to waypoint (k, n).

    The pose of its tool is not known, so it is not drawn back first.
    """

    @property
    def speed(self) -> Vector:
        """How fast each joint's target may go (1,) [rad/s]."""
        return np.array([self.options.speed_joints])

    def _plan(self, place: Vector, joints: Vector) -> str | None:
        ways = enumerate(self._end, 1)
        self._ahead = [partial(self._to_waypoint, number, end) for number, end in ways]
        return None

    def _to_waypoint(self, number: int, end: Vector, place: Vector, joints: Vector) -> _Part:
        target = self._guard.target
        start = joints if target is None else target
        return JointTargetWay(start, end, f"waypoint {number} of reset.joints")
