"""`ArmGuard`: what stands between any client and an arm; it holds when every client is dead.

Pure arithmetic: no thread, no clock, no ROS. The owner passes steady time in, calls `tick` at its
control rate, and sends what `tick` returns. An owner that stops ticking sends nothing any more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from robot_rl.safety.commands import ClientClock, CommandRefused, Mode
from robot_rl.safety.joint_limits import JointArmLimits
from robot_rl.safety.limiter import way_back
from robot_rl.safety.limits import ArmLimits, MeasurementRefused, Vector
from robot_rl.safety.measurement import (
    ArmState,
    Plausibility,
    Pushes,
    Straying,
    check_measured,
    excesses,
)

if TYPE_CHECKING:
    from robot_rl.safety.reset_motion import Resets

# A loop that was held up for longer than this moves the target as if it had been this long [s].
LONGEST_TICK = 0.05
_SMALL = 1e-9  # what rounding makes of a distance [m, rad]


class ArmGuard:
    """Keeps the target of one arm within `limits`, and holds the arm when commands fail to come.

    Targets are what the limits are of: poses (7,) in the base frame, or joint positions (n,) [rad].

    Attributes:
        mode: What the arm is doing.
        reason: Why it is in this mode, in words.
        counts: How often each limit changed or refused something. Refusals: `not_finite`,
            `malformed`, `stale_stamp`, `clock_jump`, `stopped`, `resetting`, `publishers`.
            Clamps: `workspace`, `tilt`, `yaw`, `range` of a joint, `step`, `lead`, `speed`. Holds:
            `force`, `joint`, `joint_speed`, `deadline`, `measurement`; `jump` and `stop` are what
            latched.
        target: Newest target that was given out.
        goal: Where the target is going: the last command after all limits.
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
        self._lost: Vector | None = None  # last target before measurements were forgotten
        self._unheld = False  # since then
        self._is_displaced = False
        self._plausibility = Plausibility(limits)
        self._straying = Straying(limits)
        self._pushes = Pushes(limits)
        self._way = way_back(limits)
        self._asked: Vector = np.empty(0)  # the last command, before it was kept inside
        self._backs_off = False
        self._route: Resets | None = None
        self._ticked = -math.inf
        self._received = -math.inf
        self._clock = ClientClock(limits.max_stamp_age)
        # One count per excursion or command, not one per tick.
        self._active: set[str] = set()

    # -- what clients and people ask for --------------------------------------------------------

    def command(self, target: npt.ArrayLike, stamp_ns: int, now: float, system_ns: int) -> Vector:
        """Take a target; `tick` moves there.

        Args:
            target: Position [m] and quaternion xyzw (7,), or joint positions (n,) [rad].
            stamp_ns: When the client made it, by its system clock [ns].
            now: Steady time of receipt [s].
            system_ns: System time of receipt [ns].

        Returns:
            The target after all limits.

        Raises:
            CommandRefused: It does not reach the arm; counted under its `reason`.
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
        self.goal = self._limited_goal(anchor, wanted, self._place)
        self._straying.ask(wanted)
        self.mode, self.reason = Mode.FOLLOW, "following commands"
        self._received = now
        self._active.discard("speed")
        return self.goal

    def refuse(self, reason: str, explanation: str) -> None:
        """Count a command that the owner refuses under `reason` before looking at it, and hold."""
        self.counts[reason] += 1
        if self.mode is Mode.FOLLOW:
            self.hold(explanation)

    def hold(self, reason: str) -> None:
        """Stay where the arm was measured last; commands are accepted again at once.

        The target goes there no faster than to anywhere else. An arm that holds already stays where
        it holds: with each fault that passes it would sag a little further.
        """
        if self.mode is Mode.STOPPED:
            return
        if self.mode is not Mode.HOLD:
            self._stay()
        self.mode, self.reason = Mode.HOLD, reason
        self._route = None

    def stop(self, reason: str) -> None:
        """Latch: the target goes to where the arm is, then nothing is sent until `clear`."""
        if self.mode is not Mode.STOPPED:
            self.counts["stop"] += 1
            self.hold(reason)
            self._stay()
            self.mode, self.reason = Mode.STOPPED, reason

    def clear(self, reason: str = "cleared by a person") -> None:
        """End a stop, as a person asked; the arm holds where it is measured next.

        Where that is far from its last target it stops once more, and says so.
        """
        if self.mode is Mode.STOPPED:
            self.mode = Mode.HOLD
            self.forget(reason, elsewhere=self._is_displaced, unheld=True)

    def forget(self, reason: str, *, elsewhere: bool = False, unheld: bool = False) -> None:
        """The last measurements hold no more: go on holding once the next ones agree.

        `elsewhere` says that the arm may be anywhere now. Else one that is then measured far from
        its last target stops. `unheld` says that it may have come away from that target meanwhile:
        it then holds where it is, and does not go back.
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
        if self._way is not None:
            self._way.forget()
        self.hold(reason)

    def follow_route(self, route: Resets) -> None:
        """Begin a reset; commands are refused meanwhile."""
        self._check_mode()
        self.hold("reset begins")
        self._route = route
        self.mode, self.reason = Mode.RESET, "reset motion"

    # -- the loop -------------------------------------------------------------------------------

    def tick(self, now: float, measured: ArmState) -> Vector | None:
        """Advance to `now`, on the steady clock [s], with the arm's newest state.

        Returns the target to send, always finite, or None where nothing may be sent: the arm is
        stopped, or it is not known yet where it is. Raises `MeasurementRefused` where the
        measurement cannot be one of an arm, as `check_measured`; then nothing may be sent either.
        """
        elapsed = min(max(now - self._ticked, 0.0), LONGEST_TICK)
        self._ticked = max(now, self._ticked)
        self._take(measured, now)
        if self._place is None:
            return None
        if self.mode is Mode.STOPPED:
            return self._come_to_rest(elapsed, measured.stamp_ns)
        if self.target is None and not self._resumed(self._place):
            return None
        if self.mode is Mode.FOLLOW and now - self._received > self.limits.command_deadline:
            self.counts["deadline"] += 1
            self.hold(f"no command for {self.limits.command_deadline * 1e3:.0f} ms")
        if self.mode is Mode.RESET:
            self._advance_route(elapsed, measured.joint_positions)
        if (problem := self._straying.problem(self._place)) is not None:
            self._disbelieve(problem)
            self._is_displaced = True
            return None
        self._yield_to(measured)
        self.target = self._advanced(elapsed, measured.stamp_ns)
        return self.target

    # -- how ------------------------------------------------------------------------------------

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
        """Take a measurement that limits can be computed from, and stop at one that cannot be."""
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
            self.hold(problem)  # nothing is sent before measurements agree
        elif problem is not None and self.mode is Mode.STOPPED:
            self.goal = self.target  # it has come to rest: where it is is not known any more
        elif problem is not None:
            what = self.limits.place_name
            self._disbelieve(f"{problem}; look at what measures the {what}, and at the arm")
        if self._plausibility.settled:
            self._place = place

    def _disbelieve(self, problem: str) -> None:
        """Stop, and send nothing: where the arm is is not known."""
        self.counts["jump"] += 1
        self.stop(problem)
        self.goal = self.target

    def _resumed(self, place: Vector) -> bool:
        """Hold where the arm held before its measurements were lost; stop if it is not there."""
        limits = self.limits
        if self._lost is None:
            self.target, self.goal, self._unheld = place.copy(), place.copy(), False
            self._straying.ask(place, anew=True)
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

    def _come_to_rest(self, elapsed: float, stamp_ns: int) -> Vector | None:
        """The rest of the way to where a stopped arm is; None at its end."""
        if self.target is None or self.goal is None or np.array_equal(self.target, self.goal):
            return None
        self.target = self._advanced(elapsed, stamp_ns)
        return self.target

    def _yield_to(self, measured: ArmState) -> None:
        """Hold where a force, a joint or a joint's speed is too large; a force may be left."""
        assert self._place is not None
        self._backs_off = False
        found = excesses(measured, self.limits)
        is_news = bool(found.keys() - self._active)
        for reason in found:
            self._count_once(reason)
        self._active -= {"force", "joint", "joint_speed"} - found.keys()
        if self._way is None:
            pass  # nothing measures a force
        elif "force" not in found:
            self._way.came_by(self._place)
        elif len(found) == 1 and self.mode is not Mode.HOLD:
            back = self._way.back(self._place, self._asked, measured.tcp_wrench[:3])
            if back is not None:
                self.goal, self._backs_off = back, self._way.is_known
                return
        for explanation in found.values():
            if self._route is not None and not self._route.obstructed(explanation):
                self._stay()
            elif self.mode is not Mode.HOLD:
                self.hold(explanation)
            elif is_news and "force" in found:  # what presses on an arm that holds is yielded to
                self.hold(explanation)
                self._stay()

    def _advance_route(self, elapsed: float, joints: Vector) -> None:
        assert self._route is not None
        assert self._place is not None
        goal = self._route.goal(elapsed, self._place, joints)
        if goal is None:
            self.hold("reset ended")
        else:
            self.goal = self._asked = self.inside(goal)
            self._straying.ask(goal)

    def inside(self, place: Vector) -> Vector:
        """The place, pulled to where the limits of workspace, tilt and yaw or of joints allow."""
        return self.limits.admitted(self.limits.middle, place)[0]

    def _limited_goal(self, anchor: Vector, wanted: Vector, measured: Vector) -> Vector:
        """The command after the limits of step and lead, and of where the arm may be."""
        limits, counts = self.limits, self.counts
        near, stepped = limits.towards(anchor, wanted, limits.max_step)
        counts["step"] += stepped
        near, led = limits.led(near, measured)
        counts["lead"] += led
        self._asked = near
        goal, changed = limits.admitted(anchor, near)
        for name in changed:
            counts[name] += 1
        return goal

    def _advanced(self, elapsed: float, stamp_ns: int) -> Vector:
        """The target after `elapsed` seconds of motion towards the goal.

        An arm that is pushed takes its target along, as fast as it is pushed: the lead, and with it
        the force, is bounded wherever the arm is. A held arm that was pushed away stays there; else
        the target of one that holds stays the same to the last bit.
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
            if is_led and not self._backs_off:  # where it came from is free, beyond limits too
                target, _ = limits.admitted(self.target, target)
                target, _ = limits.towards(self.target, target, most)  # it may be turned on its way
            near, pushed = limits.led(target, self._place)
            target = near if pushed or is_led else target
        if pushed:  # no faster than an arm can be
            target, _ = limits.towards(self.target, target, elapsed * limits.fastest)
            if not is_led:
                self.goal = target
        return target if np.isfinite(target).all() else self.target

    def _stay(self) -> None:
        """Let the goal be where the arm is, but no farther out of a limit than the target is."""
        self.goal = place = None if self._place is None else self._place.copy()
        if place is None:
            return
        self._straying.ask(place, anew=True)
        if self.target is not None:
            self.goal, _ = self.limits.admitted(self.target, place)
            apart = self.limits.apart
            # Far from the reference a small turn is a large yaw, which a limit would undo.
            if (apart(self.target, self.goal) > apart(self.target, place) + _SMALL).any():
                self.goal = self.target.copy()

    def _count_once(self, reason: str) -> None:
        if reason not in self._active:
            self._active.add(reason)
            self.counts[reason] += 1
