"""Base of teleoperation devices: converts device axes to robot motion."""

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
    """One reading of the operator's input."""

    stamp_ns: int  # time of the reading, system clock [ns]
    # (6,) float64 in [-1, 1]: translation and rotation vector, base frame, as a fraction of the
    # largest action.
    motion: Vector
    # New gripper command, -1 open to +1 closed; None leaves the gripper unchanged.
    gripper: float | None
    moving: bool  # whether the operator is moving the arm or commanding the gripper
    buttons: frozenset[str]  # buttons pressed since the last read


class Axes(NamedTuple):
    """Raw device state."""

    # (6,) each about -1 to 1: forward, left and up from the operator's view, and right-handed
    # rotations about these axes.
    values: Vector
    pressed: frozenset[str]  # buttons pressed since the last read


@dataclass(frozen=True)
class Shaping:
    """Conversion of device axes to a motion; the same for all devices."""

    # `base`: along the robot's base axes, turned by `rotation`; `tool`: along the tool's current
    # axes, as seen by the tool's camera.
    frame: str = "base"
    # Operator's heading about the base's z axis [rad]: 0 next to the base, looking the same way as
    # the robot; π facing the robot.
    rotation: float = 0.0
    # Dead zone for the length of the translation and of the rotation. Above it the motion ramps up
    # from 0, so there is no jump.
    dead_zone: float = 0.1
    # (6,) gain per axis; 0 disables an axis, a negative gain inverts it.
    scale: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    # Button that toggles the gripper; None for no button.
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
        """Convert device axes (6,) to a motion (6,) in [-1, 1], base frame."""
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
        # The operator's up axis is opposite to the tool's z, which points out of the gripper.
        return rotations.multiply(tool_orientation, rotations.DOWNWARD)


def chosen(axes: Sequence[float], sticks: Sequence[int], signs: Sequence[float]) -> Vector:
    """Select the axes numbered in `sticks`, with their signs; 0 for a missing axis."""
    pairs = zip(sticks, signs, strict=True)
    return np.array([sign * axes[n] if 0 <= n < len(axes) else 0.0 for n, sign in pairs])


@dataclass
class TeleopDevice(ABC):
    """A device with axes and buttons that moves a robot; subclasses read the hardware."""

    shaping: Shaping = field(default_factory=Shaping)
    # Button name → one of `robot_rl.env.operator.OperatorEvent`.
    events: Mapping[str, str] = field(default_factory=dict)
    # How long an exactly constant deflection stays valid [s]. Hands tremble: if a device that
    # reports only changes stays constant for longer, its connection is lost.
    still_s: float = math.inf
    _gripper: float = field(default=_OPEN, init=False)
    # Last axes, and the start of their current value on the steady clock [s].
    _last: tuple[Vector, float] = field(default=(np.zeros(6), -math.inf), init=False, repr=False)

    @abstractmethod
    def connect(self) -> None:
        """Open the device; `DriverError` if it is missing or access is denied."""

    @abstractmethod
    def axes(self) -> Axes:
        """Return the current axes and the buttons pressed since the last call, without waiting.

        Raises `DriverError` if the device has failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the device; can be called repeatedly."""

    def motion(self, axes: Vector, tool_orientation: Vector | None) -> Vector:
        """Convert axes (6,) that were just read to a motion (6,) in [-1, 1], base frame."""
        return self.shaping.motion(axes, tool_orientation)

    def read(
        self, tool_orientation: Vector | None = None, gripper: float | None = None
    ) -> TeleopState:
        """Return the operator's current input, without waiting.

        Args:
            tool_orientation: Quaternion xyzw (4,) of the tool in the base frame, for a device that
                moves in the tool's frame.
            gripper: Latest gripper command, -1 open to +1 closed, for a toggle button; None uses
                this device's last command.

        Raises:
            DriverError: The device has failed, or the tool orientation is missing.
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
