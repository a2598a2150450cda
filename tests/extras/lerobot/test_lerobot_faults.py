"""Interchange with LeRobot that cannot work: one clear error, and nothing is written."""

import os
import shutil
import sys
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demonstrations import DATA, FRONT, INFO, LENGTHS, RECORDS, cut_file, edit, run

from robot_rl import cli
from robot_rl.data.schema import Field, SchemaMismatch, row_schema
from robot_rl.extras.lerobot.plugin import create_lerobot


def cut_video_behind_its_index(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2000)


def drop_column(path: Path, name: str) -> None:
    pq.write_table(pq.read_table(path).drop_columns([name]), path)


def change_shape(path: Path) -> None:
    table = pq.read_table(path)
    index = table.column_names.index("action")
    narrow = pa.array([[0.0, 0.0]] * len(table), pa.list_(pa.float32()))
    pq.write_table(table.set_column(index, "action", narrow), path)


def reorder(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.take(list(reversed(range(len(table))))), path)


def slow_down(path: Path) -> None:
    """Write the same number of pictures at another rate."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=5)
        stream.width, stream.height, stream.pix_fmt = 80, 64, "yuv420p"
        for _ in range(sum(LENGTHS)):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 80, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize(
    ("file", "damage", "parts"),
    [
        (INFO, Path.unlink, ["info.json"]),
        (INFO, cut_file, ["info.json", "cannot be read"]),
        (
            INFO,
            lambda p: edit(p, lambda c: c.update(codebase_version="v2.1")),
            ["another version", "got: v2.1", "expected: v3.0"],
        ),
        (
            INFO,
            lambda p: edit(p, lambda c: c.update(fps=30)),
            ["'fps'", "got: 30", "expected: 12.5"],
        ),
        (
            "meta/robot_rl.json",
            lambda p: edit(p, lambda c: c["schema"].update(version=99)),
            ["schema version"],
        ),
        (RECORDS, Path.unlink, ["meta/episodes", "got: 0", "expected: 3"]),
        (RECORDS, cut_file, [RECORDS]),
        (DATA, Path.unlink, [DATA]),
        (DATA, cut_file, [DATA]),
        (DATA, lambda p: drop_column(p, "next.reward"), [DATA, "'next.reward'", "restore it"]),
        (  # as after LeRobot itself has added episodes
            RECORDS,
            lambda p: drop_column(p, "robot_rl/seed"),
            [RECORDS, "'robot_rl/seed'", "remove meta/robot_rl.json"],
        ),
        (DATA, change_shape, [DATA, "'action'", "expected: 3 numbers"]),
        (DATA, reorder, [DATA, "frames"]),
        (FRONT, Path.unlink, [FRONT, "cannot be read"]),
        (FRONT, cut_file, [FRONT]),
        (FRONT, cut_video_behind_its_index, [FRONT]),
        (FRONT, slow_down, [FRONT, "another rate", "expected: 25/2"]),
    ],
)
def test_bad_input_gets_one_clear_error_and_nothing_is_written(
    copy: Path, tmp_path: Path, capsys, file, damage, parts
):
    damage(copy / file)
    assert run("import", copy, tmp_path / "out.zarr") == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for part in parts:
        assert part in error
    assert [path.name for path in tmp_path.iterdir()] == ["lerobot"]


def test_what_is_no_dataset_is_refused(tmp_path: Path, capsys):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "absent"):
        assert run("import", tmp_path / place, tmp_path / "out") == cli.EXIT_ERROR
        assert "robot-rl export" in capsys.readouterr().err
        assert run("export", tmp_path / place, tmp_path / "out") == cli.EXIT_ERROR
        assert "episode dataset" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("format", ["zarr", "lerobot"])
def test_nothing_is_overwritten(folder: Path, tmp_path: Path, capsys, format):
    (tmp_path / "out").mkdir()
    for out, reason in ((tmp_path / "out", "already"), (tmp_path / "no/out", "does not exist")):
        words = ("export", folder / "recorded.zarr", out, f"format={format}")
        assert run(*words) == cli.EXIT_ERROR
        assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing(folder: Path, tmp_path: Path, capsys):
    shutil.copytree(folder / "recorded.zarr", tmp_path / "recorded")
    for chunk in (tmp_path / "recorded/data/images/left/wrist/c").rglob("*"):
        if chunk.is_file():
            cut_file(chunk)
    for format in ("zarr", "lerobot"):
        words = ("export", tmp_path / "recorded", tmp_path / "out", f"format={format}")
        assert run(*words) == cli.EXIT_ERROR
        assert "images/left/wrist" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


def test_a_camera_that_gives_no_rgb_pictures_is_named(tmp_path: Path):
    schema = row_schema("t", [Field("images/depth", "float32", (8, 8))], ["x"], 10.0)
    with pytest.raises(SchemaMismatch, match="images/depth"):
        create_lerobot(tmp_path, schema, {})


def test_without_the_packages_the_extra_is_named(folder: Path, tmp_path: Path, capsys, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("robot_rl.extras.lerobot.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ("export", folder / "recorded.zarr", tmp_path / "out", "format=lerobot")
    for command in (words, ("import", folder / "lerobot", tmp_path / "out")):
        assert run(*command) == cli.EXIT_ERROR
        assert "pip install -e '.[lerobot]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
