"""Rotations and poses for the control loop.

Quaternions are xyzw, poses are (7,) = position in metres followed by a quaternion, rotation
vectors are axis times angle in radians. Written with scalars: for single poses that is several
times faster than array code, and the control loop works on single poses.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_CONJUGATION = np.array([-1.0, -1.0, -1.0, 1.0])
_X_AXIS = np.array([1.0, 0.0, 0.0])

# Where an episode begins, a quaternion is on this one's side: far from the border between the sides
# are tools that point down or ahead and objects that stand upright, turned by up to 150 degrees.
_FIRST_SIDE = np.array([1.5, 0.3, 0.2, 1.0])

# Fingers towards the table: x of the tool forward, z down. Half a turn about x.
DOWNWARD: Vector = np.array([1.0, 0.0, 0.0, 0.0])


def multiply(left: Vector, right: Vector) -> Vector:
    """Hamilton product of two xyzw quaternions: the rotation `right` followed by `left`."""
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
    """The inverse rotation of a unit quaternion."""
    return np.asarray(quaternion * _CONJUGATION)


def from_rotation_vector(rotation: Vector) -> Vector:
    """Quaternion xyzw of a rotation vector [rad]."""
    x, y, z = rotation.tolist()
    angle = math.sqrt(x * x + y * y + z * z)
    if angle < 1e-9:
        return np.array([0.5 * x, 0.5 * y, 0.5 * z, 1.0])
    scale = math.sin(0.5 * angle) / angle
    return np.array([x * scale, y * scale, z * scale, math.cos(0.5 * angle)])


def to_rotation_vector(quaternion: Vector) -> Vector:
    """Rotation vector [rad], the shorter way round (angle at most pi)."""
    x, y, z, w = quaternion.tolist()
    if w < 0.0:
        x, y, z, w = -x, -y, -z, -w
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 if sine < 1e-9 else 2.0 * math.atan2(sine, w) / sine
    return np.array([x * scale, y * scale, z * scale])


def between(start: Vector, end: Vector) -> Vector:
    """The way (6,) from one pose (7,) to another: translation and rotation vector, base frame."""
    turn = multiply(end[3:], conjugate(start[3:]))
    return np.concatenate([end[:3] - start[:3], to_rotation_vector(turn)])


def apart(start: Vector, end: Vector) -> tuple[float, float]:
    """Distance [m] and angle [rad] between two poses (7,)."""
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
    """Rotate a velocity or a wrench (6,): its first half, and its second, by a unit quaternion."""
    return np.concatenate([rotate(quaternion, halves[:3]), rotate(quaternion, halves[3:])])


def normalize(quaternion: Vector) -> Vector:
    """Scale to unit length."""
    return np.asarray(quaternion / math.sqrt(float(quaternion @ quaternion)))


def continuous(poses: npt.NDArray[Any], before: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """The same poses with the one sign for each quaternion that leads on from the last one's.

    A quaternion and its negative are one rotation; a policy must not see both. So the sign of each
    is that with which it is nearer to the one before it. At the beginning of an episode, without
    one, the product with (1.5, 0.3, 0.2, 1.0) is positive.

    Args:
        poses: One after the other (T, ..., 7).
        before: Those before the first (..., 7); None where an episode begins.

    Returns:
        The poses (T, ..., 7), of the same dtype.
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
    """Pose of `child` (given in the parent's frame) in the frame that `parent` is given in."""
    position = parent[:3] + rotate(parent[3:], child[:3])
    return np.concatenate([position, multiply(parent[3:], child[3:])])


def relative(frame: Vector, pose: Vector) -> Vector:
    """The pose seen from `frame`; both given in one common frame."""
    inverse = conjugate(frame[3:])
    return np.concatenate([rotate(inverse, pose[:3] - frame[:3]), multiply(inverse, pose[3:])])


def displaced(pose: Vector, shift: Vector, turn: Vector) -> Vector:
    """A pose (7,), moved by `shift` (3,) and turned where it is by the quaternion `turn` (4,)."""
    return np.concatenate([pose[:3] + shift, multiply(turn, pose[3:])])


def within_angle(orientation: Vector, centre: Vector, max_angle: float) -> tuple[Vector, bool]:
    """An orientation (4,) at most `max_angle` from `centre`, and whether it was pulled there."""
    difference = to_rotation_vector(multiply(orientation, conjugate(centre)))
    angle = math.sqrt(float(difference @ difference))
    if angle <= max_angle:
        return orientation, False
    turn = from_rotation_vector(difference * (max_angle / angle))
    return multiply(turn, centre), True


def wrapped(angle: float) -> float:
    """The same angle in (-pi, pi] [rad]."""
    return math.pi - (math.pi - angle) % math.tau


def about_z(angle: float) -> Vector:
    """Quaternion xyzw of a rotation about z [rad]."""
    return np.array([0.0, 0.0, math.sin(0.5 * angle), math.cos(0.5 * angle)])


def heading(quaternion: Vector) -> float:
    """Angle about z of the rotated x axis [rad]: the yaw of what stands upright or upside down."""
    x, y, _ = rotate(quaternion, _X_AXIS).tolist()
    return math.atan2(y, x)
