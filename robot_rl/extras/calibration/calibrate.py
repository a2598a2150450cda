"""`robot-rl calibrate`: draws the board, records views of it, and finds the camera's pose.

Views are images with the arm's poses, and the camera's intrinsics:

FOLDER/camera.json     camera intrinsics
FOLDER/view-00.png     image
FOLDER/view-00.json    arm pose: {"tcp_pose": [x, y, z, qx, qy, qz, qw]}
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import yaml
from PIL import Image as Picture

from drivers.arm.base import Arm
from drivers.camera.base import Camera, Intrinsics
from policies import registry
from robot_rl.errors import in_shell, require
from robot_rl.extras.calibration.board import Board, BoardNotFound, CalibrationError, estimate
from robot_rl.extras.calibration.hand_eye import BoardView, Mount, solve
from robot_rl.processes.files import replace_text
from robot_rl.ros.nodes import Driver
from robot_rl.safety import rotations
from robot_rl.safety.commands import CommandRefused, checked_pose

Image = npt.NDArray[np.uint8]

_DOTS_PER_METRE = 300 / 0.0254
_PICTURE_S = 2.0
_PICTURES_TRIED = 10
# The arm counts as still below these speeds [m/s], [rad/s], and below these displacements during
# capture [m], [rad]: not every arm measures its speed.
_STILL_SPEED = (0.002, 0.01)
_STILL_WAY = (0.0005, 0.003)
_HEAD = """\
# Made by robot-rl calibrate camera. The pose is that of the camera's optical frame
# (x right, y down, z forward), m and quaternion xyzw, in the frame that `frame` names.
"""
# A larger residual triggers a warning [m].
_SUSPICIOUS = 0.005


def run(what: str, path: str, **options: Any) -> None:
    """Draw the board to a new PNG, or calibrate a camera from a folder of views."""
    measures = ("columns", "rows", "square", "marker", "dictionary")
    board = Board(*(options[name] for name in measures))
    if what == "board":
        _draw(board, Path(path))
    elif what == "camera":
        folder = ViewFolder(Path(path))
        if options["camera"] or options["arm"]:
            _record(folder, board, options["camera"], options["arm"])
        _calibrate(folder, board, options["mount"], options["intrinsics"])
    else:
        raise CalibrationError("unknown word", got=what, expected="board or camera")


class ViewFolder:
    """A folder of views, created with the first view."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pictures(self) -> list[Path]:
        """Return the images in order."""
        return sorted(self.path.glob("view-*.png"))

    def add(self, image: Image, tcp_pose: npt.ArrayLike) -> Path:
        """Add a view: image uint8 (H, W, 3) RGB, and TCP pose (7,) in the base frame."""
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
        """Write the intrinsics; `CalibrationError` if the folder has different ones."""
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
        """Return the intrinsics; None if unknown."""
        path = self.path / "camera.json"
        if not path.exists():
            return None
        return Intrinsics.of(_read(path), str(path))

    def find(self, board: Board) -> tuple[list[BoardView], dict[str, BoardNotFound]]:
        """Return the views that show the board, and the error of each other image by name.

        Raises `CalibrationError` if there are no images, they differ in size, or none shows the
        board.
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
        """Read an image, uint8 (H, W, 3) RGB; its size must match `camera.json`, if that exists."""
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


def _draw(board: Board, path: Path) -> None:
    if path.exists():
        raise CalibrationError(
            "nothing is overwritten", got=path, hint="name another file, or remove this one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Picture.fromarray(board.picture(_DOTS_PER_METRE))
    picture.save(path, format="PNG", dpi=(300, 300))
    width, height = (1000 * side for side in board.size)
    print(
        f"wrote {path}: print it at 100 %, {width:g} × {height:g} mm, glue it to something stiff"
        " and flat, measure a square, and give the measure as square=… and marker=… [m]",
        flush=True,
    )


def _record(folder: ViewFolder, board: Board, camera: str | None, arm: str | None) -> None:
    """Record a view each time the person presses Enter, until the end of the input."""
    if camera is None or arm is None:
        raise CalibrationError(
            "new views need the camera and the arm",
            got=f"camera={camera} arm={arm}",
            hint="leave both out to work with the views that are in the folder",
        )
    with ExitStack() as connected:
        eye, hand = _connected(camera, Camera, connected), _connected(arm, Arm, connected)
        if (known := eye.intrinsics()) is not None:
            folder.set_intrinsics(known)
        print(
            "Move the arm by hand or with its own panel; the board must be seen whole or nearly so."
            " Enter takes a view, Ctrl-D ends.",
            flush=True,
        )
        for _ in sys.stdin:
            _take_view(folder, board, eye, hand)


Connected = TypeVar("Connected", bound=Driver)


def _connected(file: str, family: type[Connected], connected: ExitStack) -> Connected:
    try:
        config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise CalibrationError(
            "a driver's configuration cannot be read",
            got=error,
            expected="a YAML file with _target_ and the driver's arguments",
        ) from error
    driver = registry.make(config, family)
    connected.callback(driver.close)
    driver.connect()
    return driver


def _take_view(folder: ViewFolder, board: Board, camera: Any, arm: Any) -> None:
    asked = time.time_ns()
    before = arm.read()
    for _ in range(_PICTURES_TRIED):  # skip images taken before the request
        frame = camera.read(_PICTURE_S)
        if frame.stamp_ns >= asked:
            break
    after = arm.read()
    way = rotations.between(before.tcp_pose, after.tcp_pose)
    speeds = (before.tcp_velocity, after.tcp_velocity)  # NaN if not measured
    if _exceeds(way, _STILL_WAY) or any(_exceeds(speed, _STILL_SPEED) for speed in speeds):
        print("the arm moves: wait until it is still", flush=True)
        return
    try:
        corners = board.find(frame.color)
    except BoardNotFound as error:
        print(error, flush=True)
        return
    picture = folder.add(frame.color, after.tcp_pose)
    print(f"{picture.name}: {len(corners.pixels)} corners", flush=True)


def _exceeds(motion: Any, most: tuple[float, float]) -> bool:
    linear, angular = np.linalg.norm(motion[:3]), np.linalg.norm(motion[3:])
    return bool(linear > most[0] or angular > most[1])


def _calibrate(folder: ViewFolder, board: Board, mount: Mount, which: str) -> None:
    views, without = folder.find(board)
    for name, problem in without.items():
        print(f"{name} is left out: {problem}", flush=True)
    intrinsics = _intrinsics(folder, views, which)
    result = solve(views, intrinsics, mount)
    path = folder.path / "calibration.yaml"
    content = {
        "mount": mount,
        "frame": "tcp" if mount == "wrist" else "base",
        "pose": [round(float(value), 9) for value in result.pose],
        "intrinsics": {
            **asdict(intrinsics),
            "source": which,
            "distortion": list(intrinsics.distortion),
        },
        "residual": {
            "views": len(views),
            "translation_m": round(result.translation, 6),
            "rotation_rad": round(result.rotation, 6),
            "pixels": round(result.pixels, 4),
        },
        "board": asdict(board),
    }
    replace_text(path, _HEAD + yaml.safe_dump(content, sort_keys=False))
    print(
        f"wrote {path}\n"
        f"  position {' '.join(f'{value:.4f}' for value in result.pose[:3])} m, orientation"
        f" {' '.join(f'{value:.4f}' for value in result.pose[3:])} (xyzw), of the camera in the"
        f" frame of the {'TCP' if mount == 'wrist' else 'base'}\n"
        f"  in ROS: ros2 run tf2_ros static_transform_publisher {_transform(result.pose)}"
        f" --frame-id {content['frame']} --child-frame-id CAMERA_color_optical_frame\n"
        f"  residual over {len(views)} views: {1e3 * result.translation:.2f} mm,"
        f" {math.degrees(result.rotation):.2f} degrees, {result.pixels:.2f} pixels",
        flush=True,
    )
    if result.translation > _SUSPICIOUS:
        print(
            f"  that is much. Worst: {result.worst_view} with"
            f" {1e3 * result.worst_translation:.1f} mm. Did the board slip, is square=… as"
            " measured, does mount=… fit, is the TCP the configured one? Remove bad views and call"
            " again without camera and arm.",
            flush=True,
        )


def _transform(pose: npt.NDArray[np.float64]) -> str:
    """Format a pose (7,) for tf2's static_transform_publisher."""
    names = ("x", "y", "z", "qx", "qy", "qz", "qw")
    return " ".join(f"--{name} {value:.6f}" for name, value in zip(names, pose, strict=True))


def _intrinsics(folder: ViewFolder, views: Sequence[BoardView], which: str) -> Intrinsics:
    if which == "estimate":
        height, width = folder.image(folder.pictures()[0]).shape[:2]
        return estimate([view.corners for view in views], width, height)
    known = folder.intrinsics()
    if known is None:
        raise CalibrationError(
            f"{folder.path}/camera.json, the camera's intrinsics, is not there",
            hint="the camera does not know them: add intrinsics=estimate, which takes them from"
            " the views",
        )
    return known
