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


def check_measured(measured: ArmState, limits: ArmLimits | JointArmLimits) -> None:
    """Refuse a measurement that no limit can be computed from, as `MeasurementRefused`.

    Something that is needed is not finite, or there are more or fewer joints than limits of them. A
    wrench is needed where it is limited.
    """
    needed = [
        ("joint positions", measured.joint_positions),
        ("joint velocities", measured.joint_velocities),
    ]
    if isinstance(limits, ArmLimits):
        needed.insert(0, ("pose", measured.tcp_pose))
    if limits.max_force is not None:
        needed.append(("force", measured.tcp_wrench[:3]))
    if limits.max_torque is not None:
        needed.append(("torque", measured.tcp_wrench[3:]))
    for name, values in needed:
        if not np.isfinite(values).all():
            raise MeasurementRefused(
                f"the measured {name} of the arm is not finite",
                got=np.asarray(values).tolist(),
                expected="finite numbers",
                hint="nothing is sent; look at the arm's sensors, or set no limit for what "
                "it does not measure",
            )
    joints = len(measured.joint_positions)
    if limits.joint_low and joints != len(limits.joint_low):
        problem = "the arm has another number of joints than its limits"
        raise MeasurementRefused(problem, got=joints, expected=len(limits.joint_low))


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
