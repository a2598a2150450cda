"""The base of teleoperation devices: from axes to a motion of the robot."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from drivers.base import DriverError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector as Vector

FRAMES = ("base", "tool")
_OPEN, _CLOSED = -1.0, 1.0


@dataclass(frozen=True)
class TeleopState:
    """An operator's input."""

    stamp_ns: int  # when it was read, system clock [ns]
    # (6,) float64 in [-1, 1]: translation and rotation vector, base frame, in units of the largest
    # action.
    motion: Vector
    # A new command for the gripper, -1 open to +1 closed; None leaves it as it is.
    gripper: float | None
    moving: bool  # whether the operator moves the arm, or commands the gripper
    buttons: frozenset[str]  # names of the buttons that went down since the last read


class Axes(NamedTuple):
    """The raw state of a device."""

    # (6,) each about -1 to 1: to the front, to the left and up as the operator sees it, and
    # rotations about these directions by the right-hand rule.
    values: Vector
    pressed: frozenset[str]  # buttons that went down since the last look


@dataclass(frozen=True)
class Shaping:
    """How the axes of a device become a motion; the same for all devices."""

    # `base`: along the axes of the robot's base, turned by `rotation`; `tool`: along those of the
    # tool as it is now, with the operator's view as that of the tool's camera.
    frame: str = "base"
    # Turn of the operator's view about the base's z axis [rad]: 0 beside the base, looking where
    # the robot looks; π facing the robot.
    rotation: float = 0.0
    # Length of translation, and of rotation, below which nothing moves. Above it the motion begins
    # from 0, so that there is no jump.
    dead_zone: float = 0.1
    # (6,) factor of each axis; 0 switches one off, a negative one turns it round.
    scale: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    # Button that closes and opens the gripper in turn; None for none.
    gripper_button: str | None = None

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise DriverError(
                "the device's frame is not known", got=self.frame, expected=" or ".join(FRAMES)
            )
        if not 0.0 <= self.dead_zone < 1.0:
            problem = "the device's dead_zone is out of range"
            raise DriverError(problem, got=self.dead_zone, expected="at least 0, below 1")
        if len(self.scale) != 6 or not all(math.isfinite(factor) for factor in self.scale):
            raise DriverError(
                "the device's scale cannot be used", got=self.scale, expected="6 finite numbers"
            )

    def motion(self, axes: Vector, tool_orientation: Vector | None) -> Vector:
        """The motion (6,) in [-1, 1], base frame, of a device's axes (6,)."""
        scaled = np.asarray(axes, np.float64) * np.asarray(self.scale)
        parts = [self._beyond_dead_zone(part) for part in (scaled[:3], scaled[3:])]
        if not any(part.any() for part in parts):
            return np.zeros(6)
        turn = self._to_base(tool_orientation)
        turned = [rotations.rotate(turn, part) for part in parts]
        return np.clip(np.concatenate(turned), -1.0, 1.0)

    def _beyond_dead_zone(self, part: Vector) -> Vector:
        length = math.sqrt(float(part @ part))
        if length <= self.dead_zone:
            return np.zeros(3)
        wanted = min((length - self.dead_zone) / (1.0 - self.dead_zone), 1.0)
        return part * (wanted / length)

    def _to_base(self, tool_orientation: Vector | None) -> Vector:
        if self.frame == "base":
            return rotations.about_z(self.rotation)
        if tool_orientation is None:
            raise DriverError(
                "the motion of a device is in the tool's frame, which is not known here",
                got="frame=tool without an orientation",
                hint="take frame=base, or give the tool's pose",
            )
        # The operator's up is against the tool's z, which points out of the gripper.
        return rotations.multiply(tool_orientation, rotations.DOWNWARD)


def chosen(axes: Sequence[float], sticks: Sequence[int], signs: Sequence[float]) -> Vector:
    """The axes of the numbers in `sticks`, with their signs; 0 for a number without an axis."""
    pairs = zip(sticks, signs, strict=True)
    return np.array([sign * axes[n] if 0 <= n < len(axes) else 0.0 for n, sign in pairs])


@dataclass
class TeleopDevice(ABC):
    """A device with axes and buttons that moves a robot; a subclass says how they are read."""

    shaping: Shaping = field(default_factory=Shaping)
    # Name of a button → one of `robot_rl.env.operator.OperatorEvent`.
    events: Mapping[str, str] = field(default_factory=dict)
    # For how long a deflection counts that does not change at all [s]. Hands tremble: a device
    # that reports only changes, and stays the same for longer, has lost its connection.
    still_s: float = math.inf
    _gripper: float = field(default=_OPEN, init=False)
    # The axes of the last look, and since when they have been the same, on the steady clock [s].
    _last: tuple[Vector, float] = field(default=(np.zeros(6), -math.inf), init=False, repr=False)

    @abstractmethod
    def connect(self) -> None:
        """Open the device; `DriverError` where it is not there, or may not be opened."""

    @abstractmethod
    def axes(self) -> Axes:
        """The present axes, and the buttons that went down since the last call; never waits.

        A device that has failed is a `DriverError`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the device; may be called again."""

    def motion(self, axes: Vector, tool_orientation: Vector | None) -> Vector:
        """The motion (6,) in [-1, 1], base frame, of axes (6,) that were just read."""
        return self.shaping.motion(axes, tool_orientation)

    def read(
        self, tool_orientation: Vector | None = None, gripper: float | None = None
    ) -> TeleopState:
        """The operator's input now; never waits.

        Args:
            tool_orientation: Quaternion xyzw (4,) of the tool in the base frame, for a device
                whose motion is in the tool's frame.
            gripper: Newest command of the gripper, -1 open to +1 closed, for a button that opens
                and closes it in turn; None: the newest of this device.

        Raises:
            DriverError: The device has failed, or an orientation is needed.
        """
        axes = self.axes()
        now, (before, since) = time.monotonic(), self._last
        if axes.pressed or not np.array_equal(before, axes.values):
            self._last = axes.values, (since := now)
        values = axes.values if now - since <= self.still_s else np.zeros(6)
        motion = self.motion(values, tool_orientation)
        last = self._gripper if gripper is None else gripper
        command = None
        if self.shaping.gripper_button in axes.pressed:
            command = self._gripper = _OPEN if last > 0.0 else _CLOSED
        moving = bool(motion.any()) or command is not None
        return TeleopState(time.time_ns(), motion, command, moving, axes.pressed)
