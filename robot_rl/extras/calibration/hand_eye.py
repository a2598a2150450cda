"""Hand-eye calibration: finds a camera's pose from views of a board.

A wrist camera views a fixed board. For a fixed camera, the gripper holds the board. Both solve A_i
X C_i = B over the views i. X is the unknown camera pose. C_i is the board in the camera frame. A_i
is the TCP in the base frame, or for a fixed camera the base in the TCP frame. B is the board's pose
in A_i's reference frame, unknown but constant. Least squares on the measured corner pixels refines
OpenCV's closed-form solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from drivers.camera.base import Intrinsics
from robot_rl.errors import require
from robot_rl.extras.calibration.board import CalibrationError, Corners

Matrix = npt.NDArray[np.float64]
Mount = Literal["wrist", "fixed"]
_LEAST_VIEWS = 5
# The arm must rotate about two axes by about this much, or X is not determined [rad].
_LEAST_TURN = np.deg2rad(5.0)


class BoardView(NamedTuple):
    """One image of the board, and the arm's pose."""

    name: str  # image name, for messages
    tcp_pose: Matrix  # TCP pose (7,) in the base frame, m and quaternion xyzw
    corners: Corners  # detected board corners


class HandEye(NamedTuple):
    """Hand-eye calibration result; residuals are root mean squares over the views."""

    # Pose (7,) of the camera's optical frame (x right, y down, z forward): in the TCP frame for a
    # wrist camera, in the base frame for a fixed one.
    pose: Matrix
    pixels: float  # reprojection error of the corners [pixels]
    translation: float  # deviation of the board's position in each view from the common one [m]
    rotation: float  # deviation of its orientation [rad]
    worst_view: str  # view with the largest position error
    worst_translation: float  # largest position error [m]


def solve(views: Sequence[BoardView], intrinsics: Intrinsics, mount: Mount) -> HandEye:
    """Find a camera's pose.

    Needs at least 5 views, between which the arm rotated about two axes or more. Raises
    `CalibrationError` if there are fewer, or if the motion does not determine the pose.
    """
    if len(views) < _LEAST_VIEWS:
        raise CalibrationError(
            "there are too few views of the board",
            got=len(views),
            expected=f"{_LEAST_VIEWS} or more, better 15",
            hint="turn the gripper by 20 to 40 degrees about different axes between them",
        )
    tcp = np.array([to_matrix(view.tcp_pose) for view in views])
    arm = tcp if mount == "wrist" else np.linalg.inv(tcp)
    _check_motion(arm)
    seen = np.array([_board_pose(view.corners, intrinsics) for view in views])
    cv2 = require("cv2", "calibrate")
    motions = (part for each in (arm, seen) for part in (each[:, :3, :3], each[:, :3, 3]))
    rotation, translation = cv2.calibrateHandEye(*motions, method=cv2.CALIB_HAND_EYE_PARK)
    camera = np.eye(4)
    camera[:3, :3], camera[:3, 3] = rotation, translation.ravel()
    if not np.isfinite(camera).all():
        raise CalibrationError(
            "the camera's pose does not follow from these views",
            hint="turn the gripper more, about different axes, between them",
        )
    board = (arm @ camera @ seen)[0]

    def errors(values: Matrix) -> Matrix:
        where = _from_vector(values[:6]), _from_vector(values[6:])
        return _pixel_errors(views, arm, intrinsics, *where).ravel()

    start = np.concatenate([_to_vector(camera), _to_vector(board)])
    # Robust loss: a view in which the board slipped should stand out, not distort the result.
    best = least_squares(errors, start, x_scale="jac", loss="soft_l1").x
    camera, board = _from_vector(best[:6]), _from_vector(best[6:])
    boards = arm @ camera @ seen
    pixels = np.linalg.norm(_pixel_errors(views, arm, intrinsics, camera, board), axis=1)
    distances = np.linalg.norm(boards[:, :3, 3] - board[:3, 3], axis=1)
    turns = Rotation.from_matrix(boards[:, :3, :3] @ board[:3, :3].T).magnitude()
    worst = int(distances.argmax())
    return HandEye(
        to_pose(camera),
        pixels=_root_mean_square(pixels),
        translation=_root_mean_square(distances),
        rotation=_root_mean_square(turns),
        worst_view=views[worst].name,
        worst_translation=float(distances[worst]),
    )


def to_matrix(pose: npt.ArrayLike) -> Matrix:
    """Return the homogeneous matrix (4, 4) of a pose (7,)."""
    values = np.asarray(pose, np.float64)
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_quat(values[3:]).as_matrix()
    matrix[:3, 3] = values[:3]
    return matrix


def to_pose(matrix: Matrix) -> Matrix:
    """Return the pose (7,), m and quaternion xyzw, of a homogeneous matrix (4, 4)."""
    turn = Rotation.from_matrix(matrix[:3, :3]).as_quat(canonical=True)
    return np.concatenate([matrix[:3, 3], turn])


def _check_motion(arm: Matrix) -> None:
    first, second = np.triu_indices(len(arm), 1)
    turns = np.linalg.inv(arm[first, :3, :3]) @ arm[second, :3, :3]
    vectors = Rotation.from_matrix(turns).as_rotvec()
    squares = np.linalg.eigvalsh(vectors.T @ vectors / len(vectors))[::-1]
    spread = np.sqrt(np.maximum(squares, 0.0))
    if spread[1] < _LEAST_TURN:
        about_one = spread[0] >= _LEAST_TURN
        raise CalibrationError(
            "between the views the gripper turned about one axis only"
            if about_one
            else "between the views the gripper hardly turned",
            got=f"{np.rad2deg(spread[0]):.1f} and {np.rad2deg(spread[1]):.1f} degrees about the"
            " first two axes",
            expected=f"{np.rad2deg(_LEAST_TURN):.0f} degrees or more about both",
            hint="add views in which it is tilted by 20 to 40 degrees about different axes",
        )


def _board_pose(corners: Corners, intrinsics: Intrinsics) -> Matrix:
    """Return the board's pose in the camera frame, (4, 4)."""
    cv2 = require("cv2", "calibrate")
    lens = intrinsics.matrix(), np.array(intrinsics.distortion)
    _, rotation, translation = cv2.solvePnP(*corners, *lens, flags=cv2.SOLVEPNP_IPPE)
    rotation, translation = cv2.solvePnPRefineLM(*corners, *lens, rotation, translation)
    return _from_vector(np.concatenate([rotation.ravel(), translation.ravel()]))


def _pixel_errors(
    views: Sequence[BoardView], arm: Matrix, intrinsics: Intrinsics, camera: Matrix, board: Matrix
) -> Matrix:
    """Return the reprojection errors (n, 2) of all corners [pixels]."""
    cv2 = require("cv2", "calibrate")
    lens = intrinsics.matrix(), np.array(intrinsics.distortion)
    errors = []
    for view, pose in zip(views, np.linalg.inv(arm @ camera) @ board, strict=True):
        vector = _to_vector(pose)
        there, _ = cv2.projectPoints(view.corners.points, vector[:3], vector[3:], *lens)
        errors.append(there.reshape(-1, 2) - view.corners.pixels)
    return np.concatenate(errors)


def _root_mean_square(values: Matrix) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _to_vector(matrix: Matrix) -> Matrix:
    return np.concatenate([Rotation.from_matrix(matrix[:3, :3]).as_rotvec(), matrix[:3, 3]])


def _from_vector(vector: Matrix) -> Matrix:
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_rotvec(vector[:3]).as_matrix()
    matrix[:3, 3] = vector[3:]
    return matrix
