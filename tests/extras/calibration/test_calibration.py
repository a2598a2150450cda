"""Hand-eye calibration on drawn boards, whose pose and camera are known."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import yaml

pytest.importorskip("cv2", reason="needs the extra calibrate")

from PIL import Image as Picture
from rendering import (
    BOARD,
    FIXED_CAMERA,
    LENS,
    WRIST_CAMERA,
    Arm,
    Camera,
    draw,
    fixed_views,
    wrist_views,
)

from robot_rl import cli
from robot_rl.extras.calibration.board import Board, BoardNotFound, CalibrationError, estimate
from robot_rl.extras.calibration.calibrate import ViewFolder
from robot_rl.extras.calibration.hand_eye import BoardView, solve, to_matrix, to_pose


def found(views, board=BOARD):
    return [
        BoardView(f"view-{number:02d}.png", to_pose(tcp), board.find(draw(seen)))
        for number, (tcp, seen) in enumerate(views)
    ]


def difference(pose, true):
    """Distance [m] and angle [rad] between two poses (7,)."""
    apart = np.linalg.inv(to_matrix(true)) @ to_matrix(pose)
    angle = np.arccos(np.clip((np.trace(apart[:3, :3]) - 1) / 2, -1, 1))
    return np.linalg.norm(apart[:3, 3]), angle


@pytest.fixture(scope="module")
def wrist():
    return found(wrist_views(12))


@pytest.fixture(scope="module")
def fixed():
    return found(fixed_views(12))


def test_the_board_is_found_to_a_fraction_of_a_pixel(wrist):
    _, seen = wrist_views(1)[0]
    corners = wrist[0].corners
    assert len(corners.pixels) > 12
    there = (seen[:3, :3] @ corners.points.T).T + seen[:3, 3]
    projected = (LENS.matrix() @ (there / there[:, 2:]).T).T[:, :2]
    assert np.abs(projected - corners.pixels).max() < 0.5


@pytest.mark.parametrize(("name", "true"), [("wrist", WRIST_CAMERA), ("fixed", FIXED_CAMERA)])
def test_the_camera_is_where_it_is(request, name, true):
    result = solve(request.getfixturevalue(name), LENS, name)
    distance, angle = difference(result.pose, true)
    assert distance < 0.001
    assert angle < np.deg2rad(0.2)
    assert result.translation < 0.001
    assert result.pixels < 0.5


def test_one_wrong_pose_shows_in_the_residual_by_name(wrist):
    moved = wrist[4].tcp_pose + np.r_[0.02, 0, 0, 0, 0, 0, 0]
    views = [*wrist[:4], wrist[4]._replace(tcp_pose=moved), *wrist[5:]]
    result = solve(views, LENS, "wrist")
    assert result.worst_view == "view-04.png"
    assert result.worst_translation > 0.008
    assert result.pixels > 3.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda views: views[:4], "too few views of the board; got: 4; expected: 5 or more"),
        (lambda views: [views[0]] * 6, "the gripper hardly turned; got: 0.0 and 0.0 degrees"),
    ],
)
def test_views_that_do_not_suffice_are_refused(wrist, make, words):
    with pytest.raises(CalibrationError, match=words):
        solve(make(wrist), LENS, "wrist")


def test_turning_about_one_axis_is_refused(wrist):
    turns = [to_matrix([0, 0, 0, 0, 0, np.sin(a), np.cos(a)]) for a in np.linspace(0, 0.4, 6)]
    start = to_matrix(wrist[0].tcp_pose)
    views = [wrist[0]._replace(tcp_pose=to_pose(start @ turn)) for turn in turns]
    with pytest.raises(CalibrationError, match=r"turned about one axis only.*tilted by 20 to 40"):
        solve(views, LENS, "wrist")


def test_a_picture_without_the_board_says_what_was_seen():
    gray = np.full((480, 640, 3), 90, np.uint8)
    with pytest.raises(BoardNotFound, match=r"got: 0 corners, 0 markers; .*7×5 squares"):
        BOARD.find(gray)
    other = Board(dictionary="DICT_4X4_50")
    with pytest.raises(BoardNotFound, match="DICT_4X4_50"):
        other.find(draw(wrist_views(1)[0][1]))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"marker": 0.04}, "a marker must fit into a square"),
        ({"rows": 2}, "too small; got: 7×2"),
        ({"dictionary": "DICT_9X9"}, "no such set of markers; got: DICT_9X9; expected: .*DICT_5X5"),
    ],
)
def test_an_impossible_board_is_refused(values, words):
    with pytest.raises(CalibrationError, match=words):
        Board(**values).picture(100.0)


def test_intrinsics_can_be_estimated_from_the_views(wrist, fixed):
    corners = [view.corners for view in (*wrist, *fixed)]
    lens = estimate(corners, LENS.width, LENS.height)
    for name in ("fx", "fy", "cx", "cy"):
        assert getattr(lens, name) == pytest.approx(getattr(LENS, name), abs=8.0)
    with pytest.raises(CalibrationError, match=r"too few views to estimate.*got: 3"):
        estimate(corners[:3], LENS.width, LENS.height)


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def devices(tmp_path, monkeypatch):
    """Files that configure the camera and the arm of `rendering`; and typed lines of Enter."""
    for name in ("Camera", "Arm"):
        path = tmp_path / f"{name.lower()}.yaml"
        path.write_text(yaml.safe_dump({"_target_": f"rendering.{name}"}))

    def enter(views, lines, speeds=None, ways=None):
        monkeypatch.setattr(Camera, "views", views)
        monkeypatch.setattr(Arm, "speeds", speeds or {})
        monkeypatch.setattr(Arm, "ways", ways or {})
        monkeypatch.setattr("sys.stdin", io.StringIO("\n" * lines))
        return [f"camera={tmp_path}/camera.yaml", f"arm={tmp_path}/arm.yaml"]

    return enter


def test_a_person_takes_views_and_gets_the_pose_with_its_residual(tmp_path, capsys, devices):
    folder = tmp_path / "views"
    views = wrist_views(8)
    words = devices([*views[:3], None, *views[3:]], 9)
    assert cli.main(["calibrate", "camera", str(folder), *words]) == 0
    said = capsys.readouterr().out
    assert said.count(" corners\n") == 8
    assert "the board is not seen well enough" in said
    result = yaml.safe_load((folder / "calibration.yaml").read_text())
    assert (result["mount"], result["frame"]) == ("wrist", "tcp")
    distance, angle = difference(result["pose"], WRIST_CAMERA)
    assert distance < 0.002
    assert angle < np.deg2rad(0.3)
    assert result["residual"]["views"] == 8
    assert result["residual"]["translation_m"] < 0.001
    assert result["intrinsics"]["fx"] == LENS.fx
    assert f"{1e3 * result['residual']['translation_m']:.2f} mm" in said


def test_no_view_is_taken_while_the_arm_moves(tmp_path, capsys, devices):
    folder = tmp_path / "views"
    # The second and the third time its speed is not measured.
    speeds = {0: 0.1, 1: np.nan, 2: np.nan}
    words = devices(wrist_views(3), 3, speeds=speeds, ways={1: 0.001})
    assert cli.main(["calibrate", "camera", str(folder), *words]) == cli.EXIT_ERROR
    output = capsys.readouterr()
    assert output.out.count("the arm moves: wait until it is still") == 2
    assert len(ViewFolder(folder).pictures()) == 1
    assert "too few views of the board; got: 1" in output.err


@pytest.fixture
def folder(tmp_path):
    made = ViewFolder(tmp_path / "folder")
    made.set_intrinsics(LENS)
    for tcp, seen in wrist_views(8):
        made.add(draw(seen), to_pose(tcp))
    return made


def run(capsys, folder, *words):
    code = cli.main(["calibrate", "camera", str(folder.path), *words])
    output = capsys.readouterr()
    return code, output.out + output.err


def test_a_folder_of_views_is_enough(capsys, folder):
    assert run(capsys, folder)[0] == 0
    code, said = run(capsys, folder, "intrinsics=estimate")
    assert code == 0, said
    assert yaml.safe_load((folder.path / "calibration.yaml").read_text())["intrinsics"]["source"]


def test_a_suspicious_result_says_so(capsys, folder):
    bad = folder.path / "view-05.json"
    pose = json.loads(bad.read_text())["tcp_pose"]
    bad.write_text(json.dumps({"tcp_pose": [pose[0] + 0.05, *pose[1:]]}))
    code, said = run(capsys, folder)
    assert code == 0
    assert "that is much. Worst: view-05.png" in said


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f.path / "camera.json").unlink(), "add intrinsics=estimate"),
        (lambda f: (f.path / "view-01.json").unlink(), "view-01.json cannot be read"),
        (
            lambda f: (f.path / "view-01.json").write_text('{"tcp_pose": [0, 0, 0]}'),
            "view-01.json holds no pose of the TCP; got: [0, 0, 0]",
        ),
        (
            lambda f: (f.path / "view-01.json").write_text('{"tcp_pose": [0, 0, 0, 0, 0, 0, 2]}'),
            "got: [0, 0, 0, 0, 0, 0, 2]; expected: tcp_pose: m, and xyzw of length 1",
        ),
        (lambda f: (f.path / "camera.json").write_text("{"), "camera.json cannot be read"),
        (lambda f: (f.path / "view-00.png").write_bytes(b"x"), "a picture cannot be read"),
        (
            lambda f: f.add(np.zeros((10, 10, 3), np.uint8), [0, 0, 0, 0, 0, 0, 1]),
            "another size than camera.json; got: 10×10; expected: 640×480",
        ),
    ],
)
def test_a_spoilt_folder_is_one_clear_error(capsys, folder, spoil, words):
    spoil(folder)
    code, said = run(capsys, folder)
    assert code == cli.EXIT_ERROR
    assert words in said


def test_no_board_in_any_picture_and_no_pictures(capsys, tmp_path):
    folder = ViewFolder(tmp_path / "empty")
    code, said = run(capsys, folder)
    assert (code, "there are no views in" in said) == (cli.EXIT_ERROR, True)
    folder.set_intrinsics(LENS)
    folder.add(np.full((480, 640, 3), 90, np.uint8), [0, 0, 0, 0, 0, 0, 1])
    code, said = run(capsys, folder)
    assert (code, "none of the 1 pictures" in said) == (cli.EXIT_ERROR, True)
    with pytest.raises(CalibrationError, match="another camera or size"):
        folder.set_intrinsics(LENS.__class__(320, 240, 1.0, 1.0, 0.0, 0.0))


def test_the_board_is_written_for_printing_and_never_overwritten(capsys, tmp_path):
    path = tmp_path / "board.png"
    assert cli.main(["calibrate", "board", str(path), "square=0.04", "marker=0.03"]) == 0
    assert "280 × 200 mm" in capsys.readouterr().out
    with Picture.open(path) as picture:
        assert picture.size == (3307, 2362)
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    assert cli.main(["calibrate", "board", str(path)]) == cli.EXIT_ERROR
    assert "nothing is overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["ceiling", "x"], "unknown word; got: ceiling; expected: board or camera"),
        (["board", "x.png", "rows=many"], "rows is no whole number"),
        (["camera", "x", "mount=ceiling"], "one of wrist, fixed"),
        (["camera", "x", "camera=c.yaml"], "need the camera and the arm"),
        (["camera", "x", "camera=c.yaml", "arm=a.yaml"], "configuration cannot be read"),
        (["camera"], "takes WHAT and PATH"),
    ],
)
def test_mistakes_at_the_command_line(capsys, tmp_path, monkeypatch, words, answer):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["calibrate", *words]) == cli.EXIT_ERROR
    assert answer in capsys.readouterr().err
