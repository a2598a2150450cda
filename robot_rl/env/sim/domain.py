"""Differences between a real cell and its model, drawn per episode from a domain's ranges.

Domain randomisation (Tobin et al., IROS 2017; for dynamics: Peng et al., ICRA 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

_SIGNED = ("calibration_position", "calibration_yaw")
_POSITIVE = ("friction", "stiffness")


class Conditions(NamedTuple):
    """Values drawn for one episode; units as in `Domain`."""

    action_delay: float
    camera_latency: float
    position_noise: float
    angle_noise: float
    force_noise: float
    calibration_position: Vector  # (3,), base frame
    calibration_yaw: float
    friction: float | None
    stiffness: float
    light: float


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Ranges (low, high) of each episode's uniform draws; the defaults leave the model unchanged.

    Raises:
        RobotRLError: A range is empty, or has impossible values.
    """

    action_delay: Sequence[float] = (0.0, 0.0)  # from an action to its effect [s]
    camera_latency: Sequence[float] = (0.0, 0.0)  # from an image to its arrival [s]
    # Standard deviations of white noise: on measured positions of TCP and objects, per axis [m]; on
    # their rotations [rad]; on forces [N] and, with a lever of 0.1 m, on torques.
    position_noise: Sequence[float] = (0.0, 0.0)
    angle_noise: Sequence[float] = (0.0, 0.0)
    force_noise: Sequence[float] = (0.0, 0.0)
    # Offset of all observed objects, constant per episode: a badly calibrated camera. The task adds
    # a recognition error per object.
    calibration_position: Sequence[float] = (0.0, 0.0)  # per axis [m]
    calibration_yaw: Sequence[float] = (0.0, 0.0)  # each about its own vertical [rad]
    # Sliding friction of the task's geoms; None for their own. A contact uses the rougher surface.
    friction: Sequence[float] | None = None
    stiffness: Sequence[float] = (1.0, 1.0)  # of the compliant arm, as a fraction of the model's
    light: Sequence[float] = (1.0, 1.0)  # brightness of all lamps, as a fraction of the model's

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            given = getattr(self, name)
            if given is not None or name != "friction":
                object.__setattr__(self, name, _checked(name, given))

    def draw(self, rng: np.random.Generator) -> Conditions:
        """Draw an episode's conditions; the fraction of each range depends only on `rng`."""

        def drawn(name: str) -> Any:
            low, high = getattr(self, name) or (0.0, 0.0)
            return low + (high - low) * rng.random(3 if name == "calibration_position" else None)

        friction = drawn("friction")
        others = {name: drawn(name) for name in Conditions._fields if name != "friction"}
        return Conditions(friction=friction if self.friction else None, **others)


class Sensors:
    """Adds an episode's measurement errors to the true state; `rng` is the source of noise."""

    def __init__(self, conditions: Conditions, rng: np.random.Generator) -> None:
        self._conditions, self._rng = conditions, rng
        self._noise: dict[str, Vector] = {}

    def next_step(self) -> None:
        """Start a step: until the next call, repeated measurements of a quantity agree."""
        self._noise.clear()

    def tcp_pose(self, pose: Vector) -> Vector:
        """Return the measured pose (7,) of the TCP."""
        return np.asarray(self._noisy("tcp", pose[None])[0])

    def object_poses(self, poses: Vector) -> Vector:
        """Return the measured poses (k, 7) of objects, with the calibration error."""
        shift, yaw = self._conditions.calibration_position, self._conditions.calibration_yaw
        if yaw or shift.any():
            turn = rotations.about_z(yaw)
            poses = np.array([rotations.displaced(pose, shift, turn) for pose in poses])
        return self._noisy("objects", poses)

    def wrench(self, wrench: Vector) -> Vector:
        """Return the measured force and torque (6,)."""
        if not self._conditions.force_noise:
            return wrench
        # Forces at the fingertips have a lever of 0.1 m.
        scale = self._conditions.force_noise * np.array([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
        return np.asarray(wrench + scale * self._drawn("wrench", 1)[0])

    def _noisy(self, name: str, poses: Vector) -> Vector:
        position, angle = self._conditions.position_noise, self._conditions.angle_noise
        if not position and not angle:
            return poses
        noise = self._drawn(name, len(poses))
        turns = [rotations.from_rotation_vector(angle * row[3:]) for row in noise]
        parts = zip(poses, position * noise[:, :3], turns, strict=True)
        return np.array([rotations.displaced(*part) for part in parts])

    def _drawn(self, name: str, rows: int) -> Vector:
        """Standard normal noise (rows, 6) of a quantity, fixed within a step."""
        if name not in self._noise:
            self._noise[name] = self._rng.standard_normal((rows, 6))
        return self._noise[name]


def _checked(name: str, given: Sequence[float]) -> tuple[float, float]:
    least = -math.inf if name in _SIGNED else 0.0
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = math.nan
    fits = math.isfinite(high - low) and least <= low <= high
    if not fits or (name in _POSITIVE and low == 0.0):
        bound = "" if name in _SIGNED else " and low > 0" if name in _POSITIVE else " and low >= 0"
        raise RobotRLError(
            f"domain.{name} is no range",
            got=given,
            expected=f"[low, high] with low <= high{bound}",
            hint=f"write domain.{name}=[LOW,HIGH]; the same number twice fixes it",
        )
    return low, high


IDEAL = Domain()
