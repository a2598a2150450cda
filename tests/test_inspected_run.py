"""What is told of a run whose files have changed since they were written, or cannot be written."""

import subprocess
from contextlib import suppress

import numpy as np
import pytest

from robot_rl import cli
from robot_rl.commands import inspection
from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose
from robot_rl.data.episodes import DatasetDamaged, EpisodeWriter
from robot_rl.data.schema import Field, row_schema
from robot_rl.replay.store import StoreWriter
from robot_rl.run import RunDirectory, RunError

STEP = "checkpoints/step_0000500"
SUMMARY = {"task": "reach", "environment_steps": 520, "deployed": "learned", "rate": 0.1}


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def demonstrations(folder):
    schema = row_schema("reach", [Field("state/x", "float32", (2,))], ["dx"], 10.0)
    rows = [{f.name: np.zeros(f.shape, f.dtype) for f in schema.fields} for _ in range(6)]
    for step, row in enumerate(rows):
        row["state/x"][:] = 1.5
        row["episode_step"] = np.int32(step)
        row["terminated"], row["is_last"] = np.bool_(step == 4), np.bool_(step == 5)
    with EpisodeWriter(folder, schema) as writer:
        writer.append(rows, seed=1, success=True, source=0)


def make_run(runs):
    """A run with demonstrations, a store, a checkpoint and a summary."""
    run = RunDirectory.create("reach", runs)
    save_resolved(compose(["task=reach"]), run.path)
    demonstrations(run.demonstrations)
    StoreWriter(run.store).close()
    with run.atomic_folder(STEP) as folder:
        (folder / "algorithm.safetensors").write_bytes(bytes(1000))
    run.save_summary(SUMMARY)
    return run


def inspected(capsys, run):
    assert cli.main(["inspect", str(run.path)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs")


def test_what_was_checked_is_said_and_a_damaged_training_state_too(run, capsys):
    assert "checksums of checkpoints, demonstrations and summary are right" in inspected(
        capsys, run
    )
    flip(run.path / STEP / "algorithm.safetensors", 500)
    said = inspected(capsys, run)
    assert "DAMAGED: the checkpoint file" in said
    assert "algorithm.safetensors has changed since it was written" in said
    assert "not finished" not in said


@pytest.mark.faults
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_run_is_inspected_where_nothing_can_be_written(small_disk, capsys, how):
    disk = small_disk("24m")
    run = make_run(disk / "runs")
    if how == "full":
        with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert "1 episodes, 5 steps, 1 successful" in inspected(capsys, run)


def test_any_flipped_bit_of_a_summary_is_told(tmp_path):
    run, file = RunDirectory(tmp_path), tmp_path / "summary.json"
    run.save_summary(SUMMARY)
    assert run.read_summary() == SUMMARY
    for at in range(file.read_bytes().index(b"crc32")):
        flip(file, at)
        with pytest.raises(RunError, match=r"summary.json (is damaged|has changed).*resume="):
            run.read_summary()
        flip(file, at)


@pytest.mark.parametrize("how", ["flipped", "emptied", "removed"])
@pytest.mark.parametrize("column", ["data/state/x", "data/action", "meta/success"])
def test_a_damaged_column_of_demonstrations_is_told(tmp_path, column, how):
    folder = tmp_path / "demonstrations.zarr"
    demonstrations(folder)
    assert inspection.describe(folder)["steps"] == 5
    for file in (folder / column / "c").rglob("*"):
        if file.is_file() and how == "removed":
            file.unlink()
        elif file.is_file() and how == "emptied":
            file.write_bytes(b"")
        elif file.is_file():
            flip(file, file.stat().st_size // 2)
    with pytest.raises(DatasetDamaged, match=column):
        inspection.describe(folder)
