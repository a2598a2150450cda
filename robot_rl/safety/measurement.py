"""What is measured of an arm, and what of it is too large."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from robot_rl.safety.joint_limits import JointArmLimits, JointRanges
from robot_rl.safety.limits import ArmLimits, MeasurementRefused, PoseLimits, Vector

# Speed towards a joint limit that counts as motion [rad/s].
_STILL = 0.01
# No more motion than in this time is believed at once, however long nothing was measured [s].
_LONGEST_GAP = 0.05
# Measurements may come in bunches, late by this [s].
_JITTER = 0.02
# Motion is also judged over this time [s].
_WINDOW = 0.1
# New measurements that must agree before an arm is believed to be where they say.
_AGREEING = 3
# A held arm is in the middle of where the newest measurements say: two of them may be wrong.
_NEWEST = 5
# Farther, faster and stronger than any arm is [m; rad; m/s, rad/s; rad/s; N, Nm].
_FARTHEST, _MOST_TURNED, _FASTEST, _STRONGEST = 10.0, 1e3, 1e4, 1e4
_UNIT_TOLERANCE = 1e-2  # a quaternion further than this from unit length is no rotation


@dataclass(frozen=True, eq=False)
class ArmState:
    """One measurement of an arm, in its base frame; all arrays float64."""

    # When it was measured, on the system clock [ns]; another number for each measurement.
    stamp_ns: int
    joint_positions: Vector  # (n,) [rad]
    joint_velocities: Vector  # (n,) [rad/s]
    tcp_pose: Vector  # position [m] and quaternion xyzw (7,)
    # Linear [m/s] and angular [rad/s] velocity (6,); NaN while it is not known.
    tcp_velocity: Vector
    # Force [N] and torque about the TCP [Nm] that the environment exerts (6,); NaN where the arm
    # measures none.
    tcp_wrench: Vector
    frame: str = "base"  # name of the base frame


class Plausibility:
    """Judges each measured place by the one before it and by how fast an arm can be."""

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._pose: Vector | None = None
        self._stamp_ns = 0
        self._taken = -math.inf
        self._agreeing = 0
        self._past: deque[tuple[float, Vector]] = deque()

    @property
    def settled(self) -> bool:
        """Whether enough measurements in a row agree for the arm to be where they say."""
        return self._agreeing >= _AGREEING

    def forget(self) -> None:
        """What comes next need not be near what was measured before."""
        self._pose, self._agreeing = None, 0
        self._past.clear()

    def problem(self, pose: Vector, stamp_ns: int, now: float) -> str | None:
        """Take a measured place; returns why no arm can have moved like that, or None.

        It is a pose (7,), base frame, or joint positions (n,) [rad]. `stamp_ns` is when it was
        measured [ns]: the same again is no new measurement. `now` is steady time [s].
        """
        last = self._pose
        if last is not None and stamp_ns == self._stamp_ns and np.array_equal(pose, last):
            return None
        # By whichever clock is later: a message may have waited on its way.
        elapsed = max(now - self._taken, 1e-9 * (stamp_ns - self._stamp_ns))
        elapsed = min(max(elapsed, 0.0), _LONGEST_GAP)
        self._pose, self._stamp_ns, self._taken = pose.copy(), stamp_ns, now
        found = None if last is None else self._jump(last, pose, elapsed)
        while self._past and now - self._past[0][0] > _WINDOW:
            self._past.popleft()
        if found is None and self._past:  # many small jumps are a large one
            found = self._jump(self._past[0][1], pose, now - self._past[0][0])
        if found is not None:
            self._past.clear()
        self._past.append((now, self._pose))
        self._agreeing = self._agreeing + 1 if found is None else 1
        return found

    def _jump(self, last: Vector, place: Vector, elapsed: float) -> str | None:
        limits = self._limits
        most = limits.noise + limits.fastest * (elapsed + _JITTER)
        beyond = limits.apart(last, place) > most
        if not beyond.any():
            return None
        what, way, ends, fastest = limits.jump_in_words(int(np.argmax(beyond)), last, place)
        return (
            f"the measured {what} jumped by {way} in {1e3 * elapsed:.0f} ms, from {ends}; an arm"
            f" moves at {fastest} at most"
        )


class Straying:
    """Notices an arm that goes away from where it is asked to be.

    A target yields to an arm that is pushed. Where the pose is measured wrongly by more than the
    largest lead (the tool centre was changed, the controller moves another frame), the target would
    yield at each tick to an arm that only follows it: it would run away.
    """

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._asked: Vector | None = None
        self._nearest: Vector = np.zeros(1)

    def ask(self, pose: Vector, *, anew: bool = False) -> None:
        """The arm is asked to be at a pose (7,), or at joint positions (n,).

        It may be as much farther from that as that is farther from the one before. With `anew` what
        was asked before does not matter: the arm may be anywhere.
        """
        if anew or self._asked is None:
            self._nearest = np.array([math.inf])
        else:
            self._nearest = self._nearest + self._limits.apart(self._asked, pose)
        self._asked = pose.copy()

    def problem(self, measured: Vector) -> str | None:
        """Why the arm, measured at such a place, must not be followed farther, or None."""
        if self._asked is None:
            return None
        limits = self._limits
        away = limits.apart(self._asked, measured)
        self._nearest = np.minimum(self._nearest, away)
        if (away <= self._nearest + limits.strayed).all():
            return None
        return (
            "the arm has gone away from where it was asked to be: by "
            f"{limits.distance_in_words(self._asked, measured)}, from "
            f"{limits.shown(self._asked, measured)}; it was pushed, or what is measured is not what"
            " its controller moves"
        )


class Pushes:
    """Tells an arm that is pushed away from where it holds from one that is measured with noise.

    A single measurement may be off by more than the lead although the arm stands. So the target
    yields where the middle of the newest ones is farther away, and then to within the lead.
    """

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._newest: deque[tuple[int, Vector]] = deque(maxlen=_NEWEST)

    def forget(self) -> None:
        """The arm does not hold, or begins to."""
        self._newest.clear()

    def yielded(self, target: Vector, place: Vector, stamp_ns: int) -> tuple[Vector, bool]:
        """Where to hold, and whether that is elsewhere than `target`, which is returned else.

        The arm was measured at `place` when `stamp_ns` says [ns]: the same again is not new.
        """
        limits, newest = self._limits, self._newest
        if not newest or newest[-1][0] != stamp_ns:
            newest.append((stamp_ns, place))
        if len(newest) < _NEWEST or not limits.led(target, place, limits.unpushed)[1]:
            return target, False
        middle = limits.median(np.array([each for _, each in newest]))
        if not limits.led(target, middle, limits.unpushed)[1]:
            return target, False
        return limits.led(target, middle)


def check_pose(pose: Vector, what: str = "the pose") -> None:
    """Raise `MeasurementRefused` where seven numbers are no pose of an arm or of what it handles.

    They are not finite, farther away than any arm reaches, or have no quaternion of length 1.
    """
    _check_numbers(pose, what, 7, _FARTHEST)
    if not abs(math.hypot(*pose[3:]) - 1.0) <= _UNIT_TOLERANCE:
        length = f"{pose[3:].tolist()}, of length {math.hypot(*pose[3:]):g}"
        expected = "x, y, z, w of length 1"
        raise MeasurementRefused(
            f"{what}'s quaternion is no rotation", got=length, expected=expected
        )


def check_place(place: Vector, limits: PoseLimits | JointRanges) -> None:
    """Raise `MeasurementRefused` where an arm cannot be at a place as its targets are."""
    if isinstance(limits, PoseLimits):
        check_pose(place, "the measured pose")
    else:
        _check_numbers(place, "the measured joints", len(limits.joint_low), _MOST_TURNED)


def check_measured(measured: ArmState, limits: ArmLimits | JointArmLimits) -> None:
    """Refuse what cannot be a measurement of this arm, as `MeasurementRefused`.

    Something has another shape, is not finite, or is beyond what any arm can be. What the arm does
    not measure is NaN throughout; its place and joints are needed, and a wrench where it is
    limited.
    """
    count = len(limits.joint_low) or np.size(measured.joint_positions)
    force, torque = limits.max_force is not None, limits.max_torque is not None
    if isinstance(limits, ArmLimits) or not np.isnan(measured.tcp_pose).all():
        check_pose(measured.tcp_pose, "the measured pose")
    for name, values, size, most, is_needed in (
        ("joint positions", measured.joint_positions, count, _MOST_TURNED, True),
        ("joint velocities", measured.joint_velocities, count, _FASTEST, True),
        ("velocity", measured.tcp_velocity, 6, _FASTEST, False),
        ("force", measured.tcp_wrench[:3], 3, _STRONGEST, force),
        ("torque", measured.tcp_wrench[3:], 3, _STRONGEST, torque),
    ):
        if is_needed or not np.isnan(values).all():
            _check_numbers(values, f"the measured {name}", size, most)


def _check_numbers(values: Vector, what: str, count: int, most: float) -> None:
    """Raise `MeasurementRefused` where they are not so many finite numbers, at most so large."""
    if values.shape != (count,):
        raise MeasurementRefused(
            f"{what} has another number of values", got=values.shape, expected=f"({count},)"
        )
    if not np.isfinite(values).all():
        problem, expected = f"{what} is not finite", "finite numbers"
    elif (np.abs(values) > most).any():
        problem, expected = f"{what} cannot be: no arm is there", f"at most {most:g}"
    else:
        return
    raise MeasurementRefused(
        problem,
        got=values.tolist(),
        expected=expected,
        hint="nothing is sent; look at the arm's sensors, or set no limit for what it does not"
        " measure",
    )


def excesses(measured: ArmState, limits: ArmLimits | JointArmLimits) -> dict[str, str]:
    """What is too large at this moment, for the arm to hold: `force`, `joint_speed` or `joint`.

    The value explains it. A joint within its margin may stand, or move away from its limit.
    """
    found = {}
    for name, part, limit, unit in (
        ("force", measured.tcp_wrench[:3], limits.max_force, "N"),
        ("torque", measured.tcp_wrench[3:], limits.max_torque, "Nm"),
    ):
        if limit is not None and (size := math.hypot(*part)) > limit:
            found["force"] = f"{name} {size:.1f} {unit} over its limit of {limit} {unit}"
    speed = float(np.abs(measured.joint_velocities).max(initial=0.0))
    if speed > limits.max_joint_speed:
        found["joint_speed"] = f"a joint moves at {speed:.2f} rad/s"
    if limits.joint_low:
        positions, velocities = measured.joint_positions, measured.joint_velocities
        low = np.array(limits.joint_low) + limits.joint_margin
        high = np.array(limits.joint_high) - limits.joint_margin
        outward = (positions < low) & (velocities < -_STILL)
        outward |= (positions > high) & (velocities > _STILL)
        if outward.any():
            joint = int(np.argmax(outward))
            found["joint"] = f"joint {joint} at {positions[joint]:.3f} rad moves to its limit"
    return found
