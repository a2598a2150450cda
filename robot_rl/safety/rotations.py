"""Rotations and poses for the control loop.

Quaternions are xyzw, poses are (7,) = position in metres followed by a quaternion, rotation
vectors are axis times angle in radians. The code uses scalars: for the single poses of the control
loop that is several times faster than array code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_CONJUGATION = np.array([-1.0, -1.0, -1.0, 1.0])
_X_AXIS = np.array([1.0, 0.0, 0.0])

# At the start of an episode each quaternion gets the sign nearer to this one. Tools that point down
# or ahead, and upright objects turned by up to 150 degrees, are far from where the sign flips.
_FIRST_SIDE = np.array([1.5, 0.3, 0.2, 1.0])

# Fingers towards the table: tool x forward, z down. Half a turn about x.
DOWNWARD: Vector = np.array([1.0, 0.0, 0.0, 0.0])


def multiply(left: Vector, right: Vector) -> Vector:
    """Return the Hamilton product of two xyzw quaternions: rotate by `right`, then `left`."""
    ax, ay, az, aw = left.tolist()
    bx, by, bz, bw = right.tolist()
    return np.array(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ]
    )


def conjugate(quaternion: Vector) -> Vector:
    """Return the inverse rotation of a unit quaternion."""
    return np.asarray(quaternion * _CONJUGATION)


def from_rotation_vector(rotation: Vector) -> Vector:
    """Return the quaternion xyzw of a rotation vector [rad]."""
    x, y, z = rotation.tolist()
    angle = math.sqrt(x * x + y * y + z * z)
    if angle < 1e-9:
        return np.array([0.5 * x, 0.5 * y, 0.5 * z, 1.0])
    scale = math.sin(0.5 * angle) / angle
    return np.array([x * scale, y * scale, z * scale, math.cos(0.5 * angle)])


def to_rotation_vector(quaternion: Vector) -> Vector:
    """Return the shorter rotation vector [rad] (angle at most pi)."""
    x, y, z, w = quaternion.tolist()
    if w < 0.0:
        x, y, z, w = -x, -y, -z, -w
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 if sine < 1e-9 else 2.0 * math.atan2(sine, w) / sine
    return np.array([x * scale, y * scale, z * scale])


def between(start: Vector, end: Vector) -> Vector:
    """Return the motion (6,) between poses (7,): translation and rotation vector, base frame."""
    turn = multiply(end[3:], conjugate(start[3:]))
    return np.concatenate([end[:3] - start[:3], to_rotation_vector(turn)])


def apart(start: Vector, end: Vector) -> tuple[float, float]:
    """Return the distance [m] and angle [rad] between two poses (7,)."""
    way = between(start, end)
    return math.hypot(*way[:3]), math.hypot(*way[3:])


def rotate(quaternion: Vector, vector: Vector) -> Vector:
    """Rotate a vector by a unit quaternion: v + 2w(u x v) + 2u x (u x v)."""
    x, y, z, w = quaternion.tolist()
    a, b, c = vector.tolist()
    tx, ty, tz = 2.0 * (y * c - z * b), 2.0 * (z * a - x * c), 2.0 * (x * b - y * a)
    return np.array(
        [
            a + w * tx + y * tz - z * ty,
            b + w * ty + z * tx - x * tz,
            c + w * tz + x * ty - y * tx,
        ]
    )


def rotate_both(quaternion: Vector, halves: Vector) -> Vector:
    """Rotate both halves of a velocity or wrench (6,) by a unit quaternion."""
    return np.concatenate([rotate(quaternion, halves[:3]), rotate(quaternion, halves[3:])])


def normalize(quaternion: Vector) -> Vector:
    """Scale to unit length."""
    return np.asarray(quaternion / math.sqrt(float(quaternion @ quaternion)))


def continuous(poses: npt.NDArray[Any], before: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Choose the sign of each quaternion so that the sequence of poses is continuous.

    A quaternion and its negative are the same rotation; a policy must not see both. So each
    quaternion gets the sign that is nearer to the previous one. The first one of an episode gets
    the sign with a positive dot product with (1.5, 0.3, 0.2, 1.0).

    Args:
        poses: Consecutive poses (T, ..., 7).
        before: The poses before the first (..., 7); None at the start of an episode.

    Returns:
        The poses (T, ..., 7) with the same dtype.
    """
    turns = poses[..., 3:]
    first = _FIRST_SIDE if before is None else before[..., 3:]
    last = np.concatenate([np.broadcast_to(first, (1, *turns.shape[1:])), turns[:-1]])
    flips = np.where((turns * last).sum(axis=-1, keepdims=True) < 0.0, -1, 1)
    signs = np.cumprod(flips, axis=0)
    if (signs > 0).all():
        return poses
    signed = poses.copy()
    signed[..., 3:] *= signs.astype(poses.dtype)
    return signed


def compose(parent: Vector, child: Vector) -> Vector:
    """Transform `child` from the parent's frame to the frame that `parent` is expressed in."""
    position = parent[:3] + rotate(parent[3:], child[:3])
    return np.concatenate([position, multiply(parent[3:], child[3:])])


def relative(frame: Vector, pose: Vector) -> Vector:
    """Return the pose relative to `frame`; both are given in one common frame."""
    inverse = conjugate(frame[3:])
    return np.concatenate([rotate(inverse, pose[:3] - frame[:3]), multiply(inverse, pose[3:])])


def displaced(pose: Vector, shift: Vector, turn: Vector) -> Vector:
    """Return a pose (7,) moved by `shift` (3,) and rotated in place by quaternion `turn` (4,)."""
    return np.concatenate([pose[:3] + shift, multiply(turn, pose[3:])])


def within_angle(orientation: Vector, centre: Vector, max_angle: float) -> tuple[Vector, bool]:
    """Clamp an orientation (4,) to `max_angle` from `centre`; also return whether it changed."""
    difference = to_rotation_vector(multiply(orientation, conjugate(centre)))
    angle = math.sqrt(float(difference @ difference))
    if angle <= max_angle:
        return orientation, False
    turn = from_rotation_vector(difference * (max_angle / angle))
    return multiply(turn, centre), True


def wrapped(angle: float) -> float:
    """Wrap an angle to (-pi, pi] [rad]."""
    return math.pi - (math.pi - angle) % math.tau


def about_z(angle: float) -> Vector:
    """Return the quaternion xyzw of a rotation about z [rad]."""
    return np.array([0.0, 0.0, math.sin(0.5 * angle), math.cos(0.5 * angle)])


def heading(quaternion: Vector) -> float:
    """Return the angle about z of the rotated x axis [rad]: the yaw, upright or upside down."""
    x, y, _ = rotate(quaternion, _X_AXIS).tolist()
    return math.atan2(y, x)
