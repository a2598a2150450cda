"""Films are a bonus: an evaluation gives its result also where none can be made."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

pytest.importorskip("av", reason="films need the package av")

from robot_rl import cli
from robot_rl.env.sim import robot as sim_robot
from robot_rl.env.sim.robot import SimRobot
from robot_rl.evaluation import videos


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _evaluate(capsys: pytest.CaptureFixture[str]) -> str:
    """Evaluate with one film; return what was said beside the result."""
    capsys.readouterr()
    assert cli.main(["evaluate", "evaluation.final_episodes=2", "evaluation.videos=1"]) == 0
    printed = capsys.readouterr()
    assert "/2 = " in printed.out
    return printed.err


def test_a_robot_that_cannot_be_filmed_is_evaluated_all_the_same(capsys, monkeypatch):
    # A class of its own: Python remembers that SimRobot can be filmed once it has been asked.
    facts = {"picture": None, "__module__": SimRobot.__module__}
    monkeypatch.setattr(sim_robot, "SimRobot", type("SimRobot", (SimRobot,), facts))
    _evaluate(capsys)
    assert json.loads(Path("runs/latest/videos/clips.json").read_text()) == []


def test_a_folder_that_cannot_be_made_is_noted_after_the_result(capsys):
    Path("runs/latest/videos").write_text("in the way")
    assert _evaluate(capsys).count("no videos: ") == 1


def test_a_package_that_cannot_encode_films_is_noted_after_the_result(capsys, monkeypatch):
    monkeypatch.setattr(videos, "_CODEC", "no_such_codec")
    assert _evaluate(capsys).count("no videos: ") == 1


def test_a_full_disk_leaves_the_list_of_films_that_was_there(tmp_path):
    """The largest file size stands for the disk: the kernel refuses the write in the middle."""
    videos.save_clips([videos.Clip("7.mp4", 7, True, 1.0)], tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
        with pytest.raises(OSError, match="File too large"):
            videos.save_clips([videos.Clip("8.mp4", 8, True, 1.0)], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [clip["seed"] for clip in json.loads((tmp_path / "clips.json").read_text())] == [7]
