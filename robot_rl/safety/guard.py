"""`ArmGuard` checks and limits every arm command, and holds the arm when no client is alive.

Pure arithmetic: no thread, no clock, no ROS. The owner calls `tick` with the steady time at its
control rate and sends the result. If the owner stops ticking, no targets are sent.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.safety.commands import ClientClock, CommandRefused, Mode
from robot_rl.safety.limiter import retreat_path
from robot_rl.safety.limits import ArmLimits, JointArmLimits, Vector
from robot_rl.safety.measurement import (
    Plausibility,
    Pushes,
    Straying,
    check_measured,
    excesses,
)
from robot_rl.safety.state import ArmState, MeasurementRefused

# Cap on the time step: after a longer pause the target moves as if this had passed [s].
LONGEST_TICK = 0.05
_SMALL = 1e-9  # rounding error of a distance [m, rad]


class Route(Protocol):
    """A motion that the arm's own node runs through the guard, such as a reset."""

    @property
    def speed(self) -> Vector:
        """Largest speed of the target, in the form of `limits.speed`."""

    def goal(self, elapsed: float, place: Vector, joints: Vector) -> Vector | None:
        """Return the goal `elapsed` [s] after the last call; None once the motion has ended."""

    def obstructed(self, reason: str) -> bool:
        """Note that a limit blocked the motion; return whether that ends it."""


class ArmGuard:
    """Keeps the target of one arm within `limits`, and holds when no fresh commands arrive.

    The limits set the type of target: poses (7,) in the base frame, or joint positions (n,) [rad].

    Attributes:
        mode: Current mode.
        reason: Why the arm is in this mode, as text.
        counts: How often each check clamped or refused a command. Refusals: `not_finite`,
            `malformed`, `stale_stamp`, `clock_jump`, `stopped`, `resetting`, `publishers`.
            Clamps: `workspace`, `tilt`, `yaw`, `range` of a joint, `step`, `lead`, `speed`. Holds:
            `force`, `joint`, `joint_speed`, `deadline`, `measurement`. Latched: `jump`, `stop`.
        target: Last target returned.
        goal: Where the target is heading: the last command after all limits.
    """

    def __init__(self, limits: ArmLimits | JointArmLimits) -> None:
        self.limits = limits
        self.mode = Mode.HOLD
        self.reason = "no command yet"
        names = "not_finite malformed stale_stamp clock_jump stopped resetting publishers "
        names += "workspace tilt yaw range step lead speed "
        names += "force joint joint_speed deadline measurement jump stop"
        self.counts = dict.fromkeys(names.split(), 0)
        self.target: Vector | None = None
        self.goal: Vector | None = None
        self._place: Vector | None = None  # measured, once measurements agree
        self._lost: Vector | None = None  # last target before the measurements were cleared
        self._unheld = False  # the arm may have left `_lost`
        self._is_displaced = False
        self._plausibility = Plausibility(limits)
        self._straying = Straying(limits)
        self._pushes = Pushes(limits)
        self._retreat = retreat_path(limits)
        self._asked: Vector = np.empty(0)  # the last command, before clamping to the limits
        self._backs_off = False
        self._route: Route | None = None
        self._ticked = -math.inf
        self._received = -math.inf
        self._clock = ClientClock(limits.max_stamp_age)
        # Count once per excursion or command, not per tick.
        self._active: set[str] = set()

    # -- requests from clients and people -------------------------------------------------------

    def command(self, target: npt.ArrayLike, stamp_ns: int, now: float, system_ns: int) -> Vector:
        """Accept a target; `tick` moves there.

        Args:
            target: Position [m] and quaternion xyzw (7,), or joint positions (n,) [rad].
            stamp_ns: When the client created it, on its system clock [ns].
            now: Steady time of receipt [s].
            system_ns: System time of receipt [ns].

        Returns:
            The target after all limits.

        Raises:
            CommandRefused: The command is rejected and counted under its `reason`.
        """
        try:
            wanted = self.limits.checked(target)
            self._clock.check(stamp_ns, system_ns)
            self._check_mode()
        except CommandRefused as refusal:
            self.counts[refusal.reason] += 1
            raise
        assert self._place is not None  # `_check_mode` refuses before the first measurement
        anchor = self.goal if self.mode is Mode.FOLLOW and self.goal is not None else self.target
        assert anchor is not None
        near, stepped = self.limits.towards(anchor, wanted, self.limits.max_step)
        self._asked, led = self.limits.led(near, self._place)
        self.goal, changed = self.limits.admitted(anchor, self._asked)
        self.counts["step"] += stepped
        self.counts["lead"] += led
        for name in changed:
            self.counts[name] += 1
        self._straying.ask(wanted)
        self.mode, self.reason = Mode.FOLLOW, "following commands"
        self._received = now
        self._active.discard("speed")
        return self.goal

    def refuse(self, reason: str, explanation: str) -> None:
        """Count a command that the owner rejected unread under `reason`, and hold."""
        self.counts[reason] += 1
        if self.mode is Mode.FOLLOW:
            self.hold(explanation)

    def hold(self, reason: str) -> None:
        """Hold the last measured place. New commands are accepted immediately.

        The target moves there at its usual speed. An arm that already holds keeps its goal;
        otherwise it would sag a little with each transient fault.
        """
        if self.mode is Mode.STOPPED:
            return
        if self.mode is not Mode.HOLD:
            self._stay()
        self.mode, self.reason = Mode.HOLD, reason
        self._route = None

    def stop(self, reason: str) -> None:
        """Latch a stop: move the target to the measured place, then send nothing until `clear`."""
        if self.mode is not Mode.STOPPED:
            self.counts["stop"] += 1
            self.hold(reason)
            self._stay()
            self.mode, self.reason = Mode.STOPPED, reason

    def clear(self, reason: str = "cleared by a person") -> None:
        """Clear a stop at a person's request; the arm holds at its next measured place.

        If that is far from the last target, the arm stops again and reports why.
        """
        if self.mode is Mode.STOPPED:
            self.mode = Mode.HOLD
            self.forget(reason, elsewhere=self._is_displaced, unheld=True)

    def forget(self, reason: str, *, elsewhere: bool = False, unheld: bool = False) -> None:
        """Discard the measurements, and hold once new ones agree.

        With `elsewhere` the arm may be anywhere now; otherwise it stops if it is far from its last
        target. With `unheld` it may have drifted from that target, so it holds where it is then.
        """
        self._unheld = self._unheld or unheld
        if elsewhere:
            self._lost = self.target = None
        elif self.target is not None:
            self._lost = self.target
        self._place = self.target = self.goal = None
        self._is_displaced = False
        self._plausibility.forget()
        self._pushes.forget()
        if self._retreat is not None:
            self._retreat.forget()
        self.hold(reason)

    def follow_route(self, route: Route) -> None:
        """Start a reset. Commands are refused until it ends."""
        self._check_mode()
        self.hold("reset begins")
        self._route = route
        self.mode, self.reason = Mode.RESET, "reset motion"

    def inside(self, place: Vector) -> Vector:
        """Return the place clamped to the limits: workspace, tilt and yaw, or joint ranges."""
        return self.limits.admitted(self.limits.middle, place)[0]

    # -- the loop -------------------------------------------------------------------------------

    def tick(self, now: float, measured: ArmState) -> Vector | None:
        """Advance to `now` [s] on the steady clock with the arm's latest state.

        Returns the target to send, always finite. Returns None if nothing may be sent: the arm is
        stopped, or its place is not known yet. Raises `MeasurementRefused` if `check_measured`
        rejects the state; then nothing may be sent either.
        """
        elapsed = min(max(now - self._ticked, 0.0), LONGEST_TICK)
        self._ticked = max(now, self._ticked)
        self._take(measured, now)
        if self._place is None:
            return None
        if self.mode is Mode.STOPPED:  # finish moving to the stop position
            if self.target is None or self.goal is None or np.array_equal(self.target, self.goal):
                return None
            self.target = self._advanced(elapsed, measured.stamp_ns)
            return self.target
        if self.target is None and not self._resumed(self._place):
            return None
        if self.mode is Mode.FOLLOW and now - self._received > self.limits.command_deadline:
            self.counts["deadline"] += 1
            self.hold(f"no command for {self.limits.command_deadline * 1e3:.0f} ms")
        if self.mode is Mode.RESET and self._route is not None:
            goal = self._route.goal(elapsed, self._place, measured.joint_positions)
            if goal is None:
                self.hold("reset ended")
            else:
                self.goal = self._asked = self.inside(goal)
                self._straying.ask(goal)
        if (problem := self._straying.problem(self._place)) is not None:
            self._disbelieve(problem)
            self._is_displaced = True
            return None
        self._yield_to(measured)
        self.target = self._advanced(elapsed, measured.stamp_ns)
        return self.target

    # -- internals ------------------------------------------------------------------------------

    def _check_mode(self) -> None:
        if self.mode is Mode.STOPPED:
            raise CommandRefused(
                "stopped",
                f"the arm is stopped: {self.reason}",
                hint="look at the arm, then call the service clear_errors",
            )
        if self.mode is Mode.RESET:
            raise CommandRefused("resetting", "a reset motion is under way", hint="wait or stop it")
        if self._place is None:
            raise CommandRefused(
                "measurement", "the arm has not been measured yet", hint="wait for joint_states"
            )
        if "measurement" in self._active:
            raise CommandRefused(
                "measurement",
                "what is measured of the arm cannot be used now",
                hint="the arm's log says why; wait until it holds again",
            )

    def _take(self, measured: ArmState, now: float) -> None:
        """Accept or refuse a measurement; stop at an impossible jump."""
        try:
            check_measured(measured, self.limits)
        except MeasurementRefused as refusal:
            self._count_once("measurement")
            self.hold(str(refusal))
            raise
        self._active.discard("measurement")
        place = self.limits.place(measured)
        problem = self._plausibility.problem(place, measured.stamp_ns, now)
        if problem is not None and self._place is None:
            self.hold(problem)  # send nothing until measurements agree
        elif problem is not None and self.mode is Mode.STOPPED:
            self.goal = self.target  # place unknown: treat the arm as at rest
        elif problem is not None:
            what = self.limits.place_name
            self._disbelieve(f"{problem}; look at what measures the {what}, and at the arm")
        if self._plausibility.settled:
            self._place = place

    def _disbelieve(self, problem: str) -> None:
        """Stop and send nothing, because the arm's place is unknown."""
        self.counts["jump"] += 1
        self.stop(problem)
        self.goal = self.target

    def _resumed(self, place: Vector) -> bool:
        """Resume the hold from before the measurements were lost; stop if the arm has moved."""
        limits = self.limits
        if self._lost is None:
            self.target, self.goal, self._unheld = place.copy(), place.copy(), False
            self._straying.ask(place, forget=True)
            return True
        target, pulled = limits.led(self._lost, place)
        target = target if pulled else self._lost
        if (limits.apart(target, self._lost) <= limits.noise).all():
            self.target = place.copy() if self._unheld else target
            self.goal, self._unheld = self.target.copy(), False
            return True
        self._disbelieve(
            f"the arm is measured {limits.distance_in_words(self._lost, place)} "
            f"from its last target ({self.reason})"
            "; look whether it really is there, then call the service clear_errors"
        )
        self._is_displaced = True
        return False

    def _yield_to(self, measured: ArmState) -> None:
        """Hold on excess force, joint position or joint speed; allow backing off from a force."""
        assert self._place is not None
        self._backs_off = False
        found = excesses(measured, self.limits)
        is_news = bool(found.keys() - self._active)
        for reason in found:
            self._count_once(reason)
        self._active -= {"force", "joint", "joint_speed"} - found.keys()
        if self._retreat is None:
            pass  # no force limit
        elif "force" not in found:
            self._retreat.record(self._place)
        elif len(found) == 1 and self.mode is not Mode.HOLD:
            back = self._retreat.target(self._place, self._asked, measured.tcp_wrench[:3])
            if back is not None:
                self.goal, self._backs_off = back, self._retreat.is_known
                return
        for explanation in found.values():
            if self._route is not None and not self._route.obstructed(explanation):
                self._stay()
            elif self.mode is not Mode.HOLD:
                self.hold(explanation)
            elif is_news and "force" in found:  # yield to a push on a holding arm
                self.hold(explanation)
                self._stay()

    def _advanced(self, elapsed: float, stamp_ns: int) -> Vector:
        """Return the target after moving towards the goal for `elapsed` seconds.

        A pushed arm drags its target along at the speed of the push, which bounds the lead, and so
        the force, everywhere. A holding arm that was pushed away stays there. Otherwise the target
        of a holding arm stays bit-identical.
        """
        assert self.target is not None
        assert self.goal is not None
        assert self._place is not None
        limits, is_led = self.limits, self.mode in (Mode.FOLLOW, Mode.RESET)
        if not is_led and np.array_equal(self.target, self.goal):
            target, pushed = self._pushes.yielded(self.target, self._place, stamp_ns)
        else:
            self._pushes.forget()
            most = elapsed * (limits.speed if self._route is None else self._route.speed)
            target, slowed = limits.towards(self.target, self.goal, most)
            if slowed and self.mode is Mode.FOLLOW:
                self._count_once("speed")
            if is_led and not self._backs_off:  # the path back is free, even out of limits
                target, _ = limits.admitted(self.target, target)
                target, _ = limits.towards(self.target, target, most)  # the clamp may add rotation
            near, pushed = limits.led(target, self._place)
            target = near if pushed or is_led else target
        if pushed:  # no faster than the arm can move
            target, _ = limits.towards(self.target, target, elapsed * limits.fastest)
            if not is_led:
                self.goal = target
        return target if np.isfinite(target).all() else self.target

    def _stay(self) -> None:
        """Set the goal to the measured place, but no farther outside a limit than the target."""
        self.goal = place = None if self._place is None else self._place.copy()
        if place is None:
            return
        self._straying.ask(place, forget=True)
        if self.target is not None:
            self.goal, _ = self.limits.admitted(self.target, place)
            apart = self.limits.apart
            # Far from the reference a small rotation is a large yaw, which the limit would undo.
            if (apart(self.target, self.goal) > apart(self.target, place) + _SMALL).any():
                self.goal = self.target.copy()

    def _count_once(self, reason: str) -> None:
        if reason not in self._active:
            self._active.add(reason)
            self.counts[reason] += 1
