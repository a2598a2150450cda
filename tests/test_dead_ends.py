"""What a new user meets in the first hours: each way that ends says where the next one begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import robot_rl
from policies import places, registry
from robot_rl import cli
from robot_rl.config import ConfigError, compose
from robot_rl.data.episodes import DatasetDamaged, EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import Field, SchemaMismatch, row_schema
from robot_rl.processes.machine import package_version

CRAWL = ("task=reach", "demonstrations=2", "environment_steps=520")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a command that is refused says, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        assert cli.main(words) == cli.EXIT_ERROR
        return capsys.readouterr().err

    return run


def test_seed_that_nothing_can_be_drawn_from_is_refused():
    for key in ("seed", "evaluation.seed", "evaluation.final_seed", "proof.seed"):
        for seed in (-1, 2**31, 2**70):
            with pytest.raises(ConfigError, match=f"{key} is out of range; got: {seed}"):
                compose([f"{key}={seed}"])


@pytest.mark.parametrize("words", [("train", "task=reach", "dataset={}"), ("inspect", "{}")])
@pytest.mark.parametrize("name", ["their demo.hdf5", "folder"])
def test_what_others_recorded_points_to_import(said, tmp_path: Path, words, name: str):
    path = tmp_path / name
    path.touch() if "." in name else path.mkdir()
    text = said(*(word.format(path) for word in words))
    assert "robot-rl import" in text
    assert "dataset=" in text


def test_cut_description_of_a_dataset_is_damage(said, tmp_path: Path):
    schema = row_schema("reach", [Field("state/tcp_pose", "float32", (7,))], ["dx"], 10.0)
    EpisodeWriter(tmp_path / "own.zarr", schema, {}).close()
    file = tmp_path / "own.zarr" / "zarr.json"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DatasetDamaged, match=r"zarr\.json cannot be read.*restore it from a copy"):
        EpisodeDataset(tmp_path / "own.zarr")
    file.unlink()
    with pytest.raises(DatasetDamaged, match=r"zarr\.json cannot be read"):
        EpisodeDataset(tmp_path / "own.zarr")


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("reach", "next: task=reach takes that of the data"),
        ("pointlab:PointReach-v0", "next: robot=gym robot.id=pointlab:PointReach-v0 takes"),
        ("their_task", None),
    ],
)
def test_hint_names_a_task_that_there_is(task: str, hint: str | None):
    fields = [Field("state/tcp_pose", "float32", (7,))]
    mine, theirs = (row_schema(name, fields, ["dx"], 10.0) for name in ("peg_insert", task))
    with pytest.raises(SchemaMismatch) as caught:
        mine.compare(theirs)
    assert hint is None or hint in str(caught.value)
    assert ("next:" in str(caught.value)) == (hint is not None)


def test_own_class_names_the_call_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "somebodys_part.py").write_text("class Part:\n    pass\n", encoding="utf-8")
    with pytest.raises(robot_rl.RobotRLError, match=r"robot_rl\.add_folder\(FOLDER\)"):
        registry.find("somebodys_part.Part", object)
    monkeypatch.setenv(places.PATH_VARIABLE, os.environ[places.PATH_VARIABLE])
    robot_rl.add_folder(str(tmp_path))
    assert registry.find("somebodys_part.Part", object).__name__ == "Part"


def test_version_is_that_of_the_package():
    assert robot_rl.__version__ == package_version("robot_rl")


def test_dry_run_says_everything_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--dry-run", *CRAWL]) == 0
    text = capsys.readouterr().out
    for words in (
        "demonstrations: 2",
        "would run: collect, clone, online",
        "processes: this one, replay, learner, actor, evaluator",
        f"data: {tmp_path}/runs/reach/TIME",
        "520 steps of online learning at 10 Hz: 0:00:52",
        "nothing was started or written",
    ):
        assert words in text
    assert cli.main(["collect", "--dry-run", "task=reach"]) == 0
    assert "20 demonstrations of up to 0:00:05 each" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("demonstrations=0",),
        ("environment_steps=10",),
        ("algorithm.schedule.batch_size=0",),
        ("dataset=not_there",),
        ("replay.connect=tcp://host:5555",),
        ("stage=no_such_stage",),
        ("policy.horizon=0",),
    ],
)
def test_dry_run_refuses_what_train_refuses(said, words):
    told = said("train", *words)
    assert said("train", "--dry-run", *words) == told


def test_dry_run_of_a_command_without_one_is_refused(said):
    assert "evaluate has no option '--dry-run'" in said("evaluate", "--dry-run")
