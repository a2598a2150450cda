"""Views of the board on disk: pictures, the arm's poses beside them, and the camera's intrinsics.

FOLDER/camera.json     how the camera projects
FOLDER/view-00.png     a picture
FOLDER/view-00.json    where the arm was: {"tcp_pose": [x, y, z, qx, qy, qz, qw]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivers.camera.base import Intrinsics
from robot_rl.errors import in_shell, require
from robot_rl.extras.calibration.board import Board, BoardNotFound, CalibrationError
from robot_rl.extras.calibration.hand_eye import BoardView
from robot_rl.safety.commands import CommandRefused, checked_pose

Image = npt.NDArray[np.uint8]


class ViewFolder:
    """A folder of views, which is made when the first one is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pictures(self) -> list[Path]:
        """The pictures that are there, in order."""
        return sorted(self.path.glob("view-*.png"))

    def add(self, image: Image, tcp_pose: npt.ArrayLike) -> Path:
        """Write one more view: uint8 (H, W, 3) RGB, and the TCP's pose (7,) in the base frame."""
        self.path.mkdir(parents=True, exist_ok=True)
        used = [int(path.stem.partition("-")[2]) for path in self.pictures()]
        picture = self.path / f"view-{max(used, default=-1) + 1:02d}.png"
        cv2 = require("cv2", "calibrate")
        pose = [float(value) for value in np.asarray(tcp_pose)]
        picture.with_suffix(".json").write_text(json.dumps({"tcp_pose": pose}), encoding="utf-8")
        if not cv2.imwrite(str(picture), image[..., ::-1]):
            raise CalibrationError("a picture cannot be written", got=picture)
        return picture

    def set_intrinsics(self, intrinsics: Intrinsics) -> None:
        """Write how the camera projects, unless the folder holds views of another one or size."""
        there = self.intrinsics()
        if there is not None and there != intrinsics:
            raise CalibrationError(
                f"{self.path} holds views of another camera or size",
                got=intrinsics,
                expected=there,
                hint="begin with a new folder",
            )
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(intrinsics), indent=1)
        (self.path / "camera.json").write_text(text, encoding="utf-8")

    def intrinsics(self) -> Intrinsics | None:
        """How the camera projects; None if that is not known."""
        path = self.path / "camera.json"
        if not path.exists():
            return None
        return Intrinsics.of(_read(path), str(path))

    def find(self, board: Board) -> tuple[list[BoardView], dict[str, BoardNotFound]]:
        """The views that show the board, and why the others do not, by name.

        Raises `CalibrationError` where there are no pictures, they differ in size, or none shows
        it.
        """
        pictures = self.pictures()
        if not pictures:
            raise CalibrationError(
                f"there are no views in {self.path}",
                expected="view-00.png, view-00.json, …",
                hint=f"{in_shell('robot-rl', 'calibrate', 'camera', self.path)}"
                " camera=CAMERA.yaml arm=ARM.yaml",
            )
        views, without = [], {}
        for picture in pictures:
            image = self.image(picture)
            try:
                corners = board.find(image)
            except BoardNotFound as error:
                without[picture.name] = error
                continue
            views.append(BoardView(picture.name, _pose(picture.with_suffix(".json")), corners))
        if not views:
            raise CalibrationError(
                f"none of the {len(pictures)} pictures in {self.path} shows the board",
                got=f"{pictures[0].name}: {without[pictures[0].name]}",
                hint="give the columns, rows and dictionary of the board that was printed",
            )
        return views, without

    def image(self, picture: Path) -> Image:
        """A picture, uint8 (H, W, 3) RGB, of the size that `camera.json` says if it is there."""
        bgr = require("cv2", "calibrate").imread(str(picture))
        if bgr is None:
            raise CalibrationError("a picture cannot be read", got=picture)
        known = self.intrinsics()
        if known is not None and bgr.shape[:2] != (known.height, known.width):
            raise CalibrationError(
                f"{picture} has another size than camera.json",
                got=f"{bgr.shape[1]}×{bgr.shape[0]}",
                expected=f"{known.width}×{known.height}",
            )
        return np.ascontiguousarray(bgr[..., ::-1])


def _pose(path: Path) -> npt.NDArray[np.float64]:
    values: Any = _read(path).get("tcp_pose")
    try:
        return checked_pose(values, tolerance=1e-3)
    except CommandRefused as error:
        problem, expected = f"{path} holds no pose of the TCP", "tcp_pose: m, and xyzw of length 1"
        raise CalibrationError(problem, got=values, expected=expected) from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path} cannot be read", got=error) from error
    if not isinstance(values, dict):
        raise CalibrationError(
            f"{path} holds no mapping", got=type(values).__name__, expected="a JSON object"
        )
    return values
