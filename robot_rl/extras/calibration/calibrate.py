"""`robot-rl calibrate`: prints the board, takes views of it, and works out where the camera is."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
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
from robot_rl.extras.calibration.board import Board, BoardNotFound, CalibrationError, estimate
from robot_rl.extras.calibration.hand_eye import BoardView, solve
from robot_rl.extras.calibration.views import ViewFolder
from robot_rl.processes.files import replace_text
from robot_rl.ros.nodes import Driver
from robot_rl.safety import rotations

_DOTS_PER_METRE = 300 / 0.0254
_PICTURE_S = 2.0
_PICTURES_TRIED = 10
# The arm counts as still below these speeds [m/s], [rad/s], and below these ways while a picture is
# taken [m], [rad]: not every arm measures its speed.
_STILL_SPEED = (0.002, 0.01)
_STILL_WAY = (0.0005, 0.003)
_HEAD = """\
# Made by robot-rl calibrate camera. The pose is that of the camera's optical frame
# (x right, y down, z forward), m and quaternion xyzw, in the frame that `frame` names.
"""
# Beyond this the result deserves a second look [m].
_SUSPICIOUS = 0.005


def run(what: str, path: str, **options: Any) -> None:
    """Draw the board to a new PNG, or calibrate a camera by the views in a folder."""
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
    """Take a view each time the person presses Enter, until the end of the input."""
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
    for _ in range(_PICTURES_TRIED):  # one may be waiting that was taken before
        frame = camera.read(_PICTURE_S)
        if frame.stamp_ns >= asked:
            break
    after = arm.read()
    way = rotations.between(before.tcp_pose, after.tcp_pose)
    speeds = (before.tcp_velocity, after.tcp_velocity)  # NaN where it is not measured
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


def _calibrate(folder: ViewFolder, board: Board, mount: str, which: str) -> None:
    views, without = folder.find(board)
    for name, problem in without.items():
        print(f"{name} is left out: {problem}", flush=True)
    intrinsics = _intrinsics(folder, views, which)
    result = solve(views, intrinsics, mount)
    path, residual = folder.path / "calibration.yaml", result.residual
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
            "translation_m": round(residual.translation, 6),
            "rotation_rad": round(residual.rotation, 6),
            "pixels": round(residual.pixels, 4),
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
        f"  residual over {len(views)} views: {1e3 * residual.translation:.2f} mm,"
        f" {math.degrees(residual.rotation):.2f} degrees, {residual.pixels:.2f} pixels",
        flush=True,
    )
    if residual.translation > _SUSPICIOUS:
        print(
            f"  that is much. Worst: {residual.worst_view} with"
            f" {1e3 * residual.worst_translation:.1f} mm. Did the board slip, is square=… as"
            " measured, does mount=… fit, is the TCP the configured one? Remove bad views and call"
            " again without camera and arm.",
            flush=True,
        )


def _transform(pose: npt.NDArray[np.float64]) -> str:
    """A pose (7,), as tf2's static_transform_publisher takes it."""
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
