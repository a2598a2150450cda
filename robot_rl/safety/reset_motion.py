"""Reset motion under the guard: retract, then move slowly to the start of episodes."""

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
# Time limit of a segment: this times its duration at full speed, plus `patience_s`.
_PATIENCE = 2.0


def checked_reset_pose(pose: npt.ArrayLike) -> Vector:
    """Return the pose (7,) of the parameter `reset.pose`, or raise `CommandRefused`."""
    return checked_pose(pose, "reset.pose", tolerance=1e-3)


def checked_reset_joints(
    values: npt.ArrayLike, joints: int, limits: ArmLimits | JointArmLimits
) -> Vector:
    """Return the waypoints (k, joints) of the flat parameter `reset.joints`.

    Raises `CommandRefused` for a wrong number of joints, or positions beyond their limits.
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
    """Return the one of `reset.pose` and `reset.joints` that is set, or raise `CommandRefused`."""
    given = [end for end in (pose, joints) if end is not None and np.size(end)]
    if len(given) != 1:
        problem = "a reset needs one of the parameters reset.pose and reset.joints"
        got, hint = "both" if given else "neither", "see hardware/arms.md, section Resets"
        raise CommandRefused("malformed", problem, got=got, hint=hint)
    return given[0]


class ResetOutcome(NamedTuple):
    """Result of a reset; after a failure the message tells the operator what to do."""

    success: bool
    message: str


_Part = StraightWay | JointWay | JointTargetWay


class Resets:
    """Moves an arm to the start of episodes: retract along the tool, then move there.

    For a pose, the arm moves across and then forward along the tool again. For joint positions, it
    moves in joint space through all waypoints. Each segment goes from rest to rest with bounded
    jerk, and waits for an arm that does not keep up. The arm stops and asks for a person if it hits
    something, fails to arrive twice, or would leave its limits, which is checked before it moves.
    A reset that was aborted on the way continues from there without retracting the tool further.

    Args:
        guard: The arm's guard, which requests the `goal`; the path stays in its workspace.
        options: How to move.
        forward: The arm's kinematics; None if it only moves to poses.

    Attributes:
        options: See `ResetOptions`.
        busy: Whether a reset is running.
    """

    def __init__(
        self, guard: ArmGuard, options: ResetOptions, forward: ForwardKinematics | None = None
    ) -> None:
        self.options = options
        self.busy = False
        self._guard = guard
        self._forward = forward
        self._end: Vector = np.empty(7)
        # Builders of the remaining segments, called with the arm's place at that time; None before
        # the motion starts.
        self._ahead: list[Callable[[Vector, Vector], _Part]] | None = None
        self._part: _Part | None = None  # the current segment
        self._seconds = 0.0  # duration of the segment at its largest speed
        self._moved = self._waited = 0.0  # seconds of motion, and total seconds, in the segment
        self._goal: Vector = np.empty(7)
        self._failure: str | None = None  # why this attempt failed
        self._away: Vector | None = None  # retracted pose of the tool
        # The arm's last pose on the path, and the retracted pose where its tool is free.
        self._left: tuple[Vector, Vector] | None = None

    def begin(self, end: npt.ArrayLike) -> None:
        """Start a reset, or raise `CommandRefused`.

        Args:
            end: A pose (7,), clamped to the workspace; or joint waypoints (k, n) [rad] from
                `checked_reset_joints`, the last of which is the end.
        """
        by_joints = np.ndim(end) == 2
        goal = np.array(end) if by_joints else self._guard.inside(checked_reset_pose(end))
        self._attempt(goal, 1)

    def give_up(self, reason: str) -> ResetOutcome | None:
        """Abort a running reset without another attempt; return None if there is none."""
        if not self.busy:
            return None
        self.busy = False
        self._guard.hold(reason)
        return ResetOutcome(False, f"the reset was given up: {reason}")

    def poll(self) -> ResetOutcome | None:
        """Return the outcome once the reset has ended, else None; call after each guard tick."""
        guard = self._guard
        if not self.busy or guard.mode is Mode.RESET:
            return None
        failed = self._failure is not None and guard.mode is not Mode.STOPPED
        if self._arrived or failed or guard.mode is Mode.STOPPED:  # it may have hit something
            self._left = None
        if failed and self._may_be_repeated and self._attempts < ATTEMPTS:
            self._failure = None  # if the guard refuses, the reset is aborted
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
        """Return the next goal (7,); None after arrival or a failure.

        `elapsed` [s] is the time since the last call. The measured state is a pose (7,) and joint
        positions (n,) [rad].
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
            # Do not run ahead of a blocked arm: that would change the remaining path.
            if not guard.limits.led(self._goal, pose)[1]:
                self._moved += elapsed
            if self._share == 1.0 and part.left(pose, joints, options) is None:
                part = self._away = None  # the tool is free from now on
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
        """Note that a limit blocked the motion; return whether that ends it."""
        if self._ahead is not None:
            self._fail(reason)
        return self._ahead is not None

    def _attempt(self, end: Vector, number: int, pause: float = 0.0) -> None:
        """Start after `pause` [s], during which the arm yields to contact."""
        self._guard.follow_route(self)
        self._end, self._attempts, self._pause = end, number, pause
        self.busy, self._arrived = True, False
        self._ahead = self._part = self._failure = None
        self._may_be_repeated = True  # automatic retry, but not after a collision

    def _plan(self, pose: Vector, joints: Vector) -> str | None:
        """Plan the path from the arm's place; return why it is not allowed, or None."""
        away, left, self._left = None, self._left, None
        if left and StraightWay(pose, left[0]).left(pose, joints, self.options) is None:
            away = left[1]  # retracted pose of the aborted reset
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
        for number in numbers:  # the path to the first is checked after retracting
            way = self._way(number, self._end[max(0, number - 1)], pose, joints)
            if (problem := way.beyond(self._pose_limits, self.options)) is not None:
                return problem
        ways = [partial(self._by_joints, number) for number in numbers]
        self._ahead = [partial(self._straight, away), *ways]
        return None

    def _fail(self, problem: str) -> None:
        """Fail this reset without a retry, which would hit the same problem."""
        self._failure, self._may_be_repeated = problem, False

    @property
    def speed(self) -> Vector:
        """Largest speed of the target, in the form of the guard's `limits.speed`."""
        return np.array([self.options.speed_translation, self.options.speed_rotation])

    @property
    def _share(self) -> float:
        return share_of_way(self._moved, self._seconds)

    def _straight(self, end: Vector, pose: Vector, joints: Vector) -> _Part:
        target = self._guard.target  # the current target
        return StraightWay(pose if target is None else target, end)

    def _by_joints(self, number: int, pose: Vector, joints: Vector) -> _Part:
        way = self._way(number, joints, pose, joints)
        if (problem := way.beyond(self._pose_limits, self.options)) is not None:
            self._fail(problem)
        return way

    def _way(self, number: int, start: Vector, pose: Vector, joints: Vector) -> JointWay:
        """Build the motion from joint positions to a waypoint, with the tool pose as measured."""
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
    """Resets for an arm with joint targets: straight from waypoint to waypoint (k, n).

    The tool's pose is unknown, so the tool is not retracted first.
    """

    @property
    def speed(self) -> Vector:
        """Largest speed of each joint's target (1,) [rad/s]."""
        return np.array([self.options.speed_joints])

    def _plan(self, place: Vector, joints: Vector) -> str | None:
        ways = enumerate(self._end, 1)
        self._ahead = [partial(self._to_waypoint, number, end) for number, end in ways]
        return None

    def _to_waypoint(self, number: int, end: Vector, place: Vector, joints: Vector) -> _Part:
        target = self._guard.target
        start = joints if target is None else target
        return JointTargetWay(start, end, f"waypoint {number} of reset.joints")
