"""Pictures of the board from known poses, and devices that give them one after the other."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import ClassVar

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from drivers.camera.base import Frame
from robot_rl.extras.calibration.board import Board, Intrinsics
from robot_rl.extras.calibration.hand_eye import to_matrix

LENS = Intrinsics(640, 480, 600.0, 605.0, 322.0, 238.0)
BOARD = Board()
_DENSITY, _FINER = 8000.0, 3  # of the board's picture [pixels per m], and of the rendering

# Camera on the TCP: 7 cm in front of it, looking along the fingers, turned a bit.
WRIST_CAMERA = np.r_[0.07, 0.01, -0.05, Rotation.from_euler("xyz", [5, -8, 92], True).as_quat()]
# Camera in the base frame, 80 cm in front of the arm, looking back at it.
FIXED_CAMERA = np.r_[
    1.0, 0.1, 0.4, (Rotation.from_matrix([[0, 0, -1], [1, 0, 0], [0, -1, 0]])).as_quat()
]


def draw(camera_to_board, lens=LENS, board=BOARD):
    """What a camera without distortion sees of the board at a pose (4, 4): uint8 (H, W, 3)."""
    texture = board.picture(_DENSITY)
    texture = cv2.copyMakeBorder(texture, 80, 80, 80, 80, cv2.BORDER_CONSTANT, value=255)
    to_board = np.array([[1, 0, -79.5], [0, 1, -79.5], [0, 0, _DENSITY]]) / _DENSITY
    to_picture = lens.matrix() @ camera_to_board[:3, [0, 1, 3]]
    finer = np.array([[_FINER, 0, (_FINER - 1) / 2], [0, _FINER, (_FINER - 1) / 2], [0, 0, 1]])
    size = lens.width * _FINER, lens.height * _FINER
    large = cv2.warpPerspective(
        texture, finer @ to_picture @ to_board, size, flags=cv2.INTER_AREA, borderValue=90
    )
    small = cv2.resize(large, (lens.width, lens.height), interpolation=cv2.INTER_AREA)
    return np.repeat(small[..., None], 3, axis=2)


def facing(rng, distance, tilt):
    """A pose (4, 4) of the board before the camera, tilted by up to `tilt` [rad] about x, y, z."""
    width, height = BOARD.size
    turn = Rotation.from_rotvec(rng.uniform(-tilt, tilt, 3))
    centre = np.array([*rng.uniform(-0.02, 0.02, 2), rng.uniform(*distance)])
    pose = np.eye(4)
    pose[:3, :3] = turn.as_matrix()
    pose[:3, 3] = centre - turn.apply([width / 2, height / 2, 0.0])
    return pose


def wrist_views(count, tilt=0.5, seed=0):
    """(TCP pose (4, 4), board in the camera's frame) with a board that lies on the table."""
    rng = np.random.default_rng(seed)
    board = to_matrix([0.5, 0.0, 0.0, *Rotation.from_euler("xyz", [180, 0, 30], True).as_quat()])
    seen = [facing(rng, (0.28, 0.4), tilt) for _ in range(count)]
    camera = to_matrix(WRIST_CAMERA)
    return [(board @ np.linalg.inv(camera @ pose), pose) for pose in seen]


def fixed_views(count, tilt=0.5, seed=0):
    """The same with a fixed camera and the board in the gripper."""
    rng = np.random.default_rng(seed)
    on_tcp = to_matrix([0.02, -0.1, 0.05, *Rotation.from_euler("xyz", [10, 80, 0], True).as_quat()])
    seen = [facing(rng, (0.35, 0.5), tilt) for _ in range(count)]
    return [(to_matrix(FIXED_CAMERA) @ pose @ np.linalg.inv(on_tcp), pose) for pose in seen]


class Camera:
    """Gives a picture of each of the views in turn; connected through a configuration."""

    views = ()
    taken = 0

    def __init__(self, known=True):
        self._known = known

    def connect(self):
        type(self).taken = 0

    def intrinsics(self):
        return LENS if self._known else None

    def read(self, timeout_s):
        view = self.views[min(type(self).taken, len(self.views) - 1)]
        type(self).taken += 1
        image = np.full((480, 640, 3), 90, np.uint8) if view is None else draw(view[1])
        return Frame(time.time_ns(), self.taken, image)

    def close(self):
        pass


class Arm:
    """Stands where each picture is taken from; is read before and after it."""

    speeds: ClassVar = {}  # number of the picture → what it measures of its speed
    ways: ClassVar = {}  # and how far it goes along x meanwhile
    readings = 0

    def connect(self):
        type(self).readings = 0

    def read(self):
        from robot_rl.extras.calibration.hand_eye import to_pose

        number, after = divmod(type(self).readings, 2)
        type(self).readings += 1
        view = Camera.views[min(number, len(Camera.views) - 1)]
        pose = np.r_[0, 0, 0, 0, 0, 0, 1.0] if view is None else to_pose(view[0])
        pose[0] += after * self.ways.get(number, 0.0)
        return SimpleNamespace(tcp_pose=pose, tcp_velocity=np.full(6, self.speeds.get(number, 0.0)))

    def close(self):
        pass

    def command(self, target_pose):
        raise AssertionError("a calibration moves nothing")

    hold = stop = clear_errors = command
