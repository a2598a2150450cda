"""Client commands and their checks."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector


class Mode(Enum):
    """Mode of the arm."""

    HOLD = "hold"
    FOLLOW = "follow"
    RESET = "reset"
    STOPPED = "stopped"


class CommandRefused(RobotRLError):
    """A command was rejected before it reached the arm; counted under `reason`."""

    def __init__(self, reason: str, problem: str, **words: Any) -> None:
        super().__init__(problem, **words)
        self.reason = reason


def checked_pose(
    target: npt.ArrayLike, what: str = "the target", tolerance: float = 1e-2
) -> Vector:
    """Return a commanded pose (7,) with a unit quaternion, or raise `CommandRefused`."""
    pose = _finite(target, 7, what, f"{what} is no pose")
    # hypot does not overflow or underflow for any input.
    if not abs(math.hypot(*pose[3:]) - 1.0) < tolerance:
        raise CommandRefused(
            "malformed",
            f"{what}: the orientation is not a rotation",
            got=pose[3:].tolist(),
            expected="a quaternion xyzw of length 1",
        )
    pose[3:] = rotations.normalize(pose[3:])
    return pose


def checked_joints(target: npt.ArrayLike, joints: int) -> Vector:
    """Return commanded positions (joints,) [rad], or raise `CommandRefused`."""
    return _finite(target, joints, "the target", "the target is no positions of this arm's joints")


def _finite(target: npt.ArrayLike, count: int, what: str, problem: str) -> Vector:
    """Return finite numbers (count,), or raise `CommandRefused`; `problem` names a wrong shape."""
    try:
        numbers = np.array(target, np.float64)
    except (TypeError, ValueError) as error:
        raise CommandRefused("malformed", problem, got=target) from error
    if numbers.shape != (count,):
        raise CommandRefused("malformed", problem, got=numbers.shape, expected=f"shape ({count},)")
    if not np.isfinite(numbers).all():
        raise CommandRefused(
            "not_finite",
            f"{what} is not finite",
            got=numbers.tolist(),
            expected="finite numbers",
            hint="nothing was sent; look at the policy or the client",
        )
    return numbers


class ClientClock:
    """Refuses commands whose stamp is off by more than `max_age` [s] from the system clock."""

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._stamp_ns: int | None = None

    def check(self, stamp_ns: int, system_ns: int) -> None:
        """Refuse a stale or repeated stamp. The deadline for holding uses steady time only."""
        age = (system_ns - stamp_ns) * 1e-9
        if abs(age) > self._max_age:
            raise CommandRefused(
                "stale_stamp",
                "the target's stamp is not of now",
                got=f"{age:.3f} s before this machine's clock",
                expected=f"within {self._max_age} s",
                hint="the client was held up, or two machines' clocks differ: synchronise them",
            )
        last, self._stamp_ns = self._stamp_ns, stamp_ns
        if last is not None and stamp_ns <= last:
            raise CommandRefused(
                "clock_jump",
                "the target's stamp is not newer than the one before",
                got=f"{(last - stamp_ns) * 1e-9:.3f} s earlier",
                hint="a clock was set back, or a message was sent twice; "
                "the next command with a newer stamp is followed",
            )
