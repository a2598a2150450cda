"""Episode datasets as a recording session and a training run meet them."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zarr
from recorder import append_known, expected_episode, make_rows, make_schema

from robot_rl import cli
from robot_rl.commands.api import read_episodes
from robot_rl.data.episodes import (
    DatasetDamaged,
    DatasetError,
    Episode,
    EpisodeDataset,
    EpisodeWriter,
    NotADataset,
    OutsideDataset,
)
from robot_rl.data.schema import SchemaMismatch
from robot_rl.data.transfer import DatasetSink


@pytest.fixture
def path(tmp_path):
    return tmp_path / "demonstrations.zarr"


def record(path, count, **options):
    with EpisodeWriter(path, make_schema(), **options) as writer:
        for _ in range(count):
            append_known(writer)


def test_what_was_recorded_is_read_back(path):
    record(path, 3, metadata={"simulated": True})
    dataset = EpisodeDataset(path)
    assert len(dataset) == 3
    assert dataset.metadata == {"simulated": True}
    for index in range(3):
        episode = dataset.episode(index)
        for name, column in expected_episode(index).items():
            read = episode[name]
            np.testing.assert_array_equal(read, column)
            assert read.dtype == column.dtype


def test_columns_span_all_episodes_and_ends_count_final_rows(path):
    record(path, 3)
    dataset = EpisodeDataset(path)
    assert dataset.episode_ends.tolist() == [2, 11, 14]
    assert dataset.rows_total == 14
    poses = dataset.read("state/tcp_pose")
    assert poses.shape == (14, 7)
    np.testing.assert_array_equal(poses[2:11], expected_episode(1)["state/tcp_pose"])
    assert np.flatnonzero(dataset.read("is_last")).tolist() == [1, 10, 13]
    assert dataset.arrays(["action", "reward"]).keys() == {"action", "reward"}


def test_each_episode_has_its_description(path):
    record(path, 3)
    dataset = EpisodeDataset(path)
    assert dataset.seeds.tolist() == [100, 101, 102]
    assert dataset.successes.tolist() == [True, False, False]
    assert dataset.sources.tolist() == [0, 1, 0]
    assert dataset.instructions == ["épisode 0", "épisode 1", "épisode 2"]


def test_recording_goes_on_where_it_ended(path):
    record(path, 2, metadata={"operator": "a"})
    record(path, 2, metadata={"operator": "b"})
    dataset = EpisodeDataset(path)
    assert len(dataset) == 4
    assert dataset.metadata == {"operator": "a"}
    np.testing.assert_array_equal(dataset.episode(3)["action"], expected_episode(3)["action"])


def test_a_reader_sees_what_there_was_when_it_was_opened(path):
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
        dataset = EpisodeDataset(path)
        append_known(writer)
        assert len(dataset) == 1
        assert len(dataset.read("reward")) == 2
        assert len(EpisodeDataset(path).read("reward")) == 11


def test_an_empty_dataset_reads_as_empty(path):
    EpisodeWriter(path, make_schema()).close()
    dataset = EpisodeDataset(path)
    assert len(dataset) == 0
    assert dataset.read("state/tcp_pose").shape == (0, 7)


def test_columns_longer_than_one_chunk(path):
    schema = make_schema()
    rows = make_rows(0, length=1500)
    with EpisodeWriter(path, schema) as writer:
        for seed in range(2):
            writer.append(rows, seed=seed, success=True, source=0)
    dataset = EpisodeDataset(path)
    expected = np.stack([row["state/tcp_pose"] for row in rows])
    np.testing.assert_array_equal(dataset.read("state/tcp_pose"), np.concatenate([expected] * 2))
    np.testing.assert_array_equal(dataset.episode(1)["state/tcp_pose"], expected)


def test_the_layout_is_plain_zarr(path):

    record(path, 2)
    group = zarr.open_group(path, mode="r")
    assert group["meta/episode_ends"][:].tolist() == [2, 11]
    assert group["data/state/tcp_pose"].shape == (11, 7)
    assert json.loads(group.attrs["schema"])["task"] == "reach"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows[:1], "at least one action"),
        (lambda rows: rows[:-1], "is_last"),
        (lambda rows: [*rows, *rows], "is_last"),
        (lambda rows: [*rows[:-1], {**rows[-1], "action": np.ones(2, np.float32)}], "'action'"),
    ],
    ids=["one row", "no final row", "two episodes", "action in the final row"],
)
def test_what_is_no_whole_episode_is_refused(path, spoil, message):
    with EpisodeWriter(path, make_schema()) as writer:
        with pytest.raises(DatasetError, match=message):
            writer.append(spoil(make_rows(1)), seed=0, success=True, source=0)
        append_known(writer)
    assert len(EpisodeDataset(path)) == 1


def test_a_bad_row_is_named_and_nothing_is_written(path):
    rows = make_rows(1)
    rows[3]["state/tcp_pose"] = np.full(7, np.nan, np.float32)
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
        with pytest.raises(SchemaMismatch, match="state/tcp_pose"):
            writer.append(rows, seed=0, success=True, source=0)
        append_known(writer)
    dataset = EpisodeDataset(path)
    np.testing.assert_array_equal(dataset.episode(1)["action"], expected_episode(1)["action"])


@pytest.mark.parametrize(("option", "value"), [("source", 7), ("seed", 2**70)])
def test_a_bad_description_is_refused(path, option, value):
    description = {"seed": 0, "success": True, "source": 0, option: value}
    with (
        EpisodeWriter(path, make_schema()) as writer,
        pytest.raises(DatasetError, match=option),
    ):
        writer.append(make_rows(0), **description)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (make_schema(task="peg_insert"), "task"),
        (make_schema(rate=20.0), "control_rate_hz"),
        (make_schema(pose_size=6), "state/tcp_pose"),
    ],
)
def test_data_of_another_task_rate_or_shape_is_refused(path, other, named):
    record(path, 1)
    with pytest.raises(SchemaMismatch, match=f"{named}.*got: .*expected: "):
        EpisodeDataset(path).expect(other)
    with pytest.raises(SchemaMismatch, match=named):
        EpisodeWriter(path, other)
    assert EpisodeDataset(path).expect(make_schema()).rows_total == 2


def test_an_older_schema_version_is_refused(path):
    record(path, 1)
    file = path / "zarr.json"
    file.write_text(file.read_text().replace('\\"version\\": 3', '\\"version\\": 1'))
    with pytest.raises(SchemaMismatch, match=r"version.*got: 1; expected: 3"):
        EpisodeDataset(path)


def test_what_is_no_dataset_is_refused_and_left_alone(tmp_path):
    with pytest.raises(NotADataset, match="there is no episode dataset"):
        EpisodeDataset(tmp_path / "nowhere")
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(NotADataset, match="is no episode dataset"):
        EpisodeDataset(tmp_path)
    with pytest.raises(NotADataset):
        EpisodeWriter(tmp_path, make_schema())
    with pytest.raises(NotADataset):
        EpisodeWriter(tmp_path / "thesis.txt", make_schema())
    assert (tmp_path / "thesis.txt").read_text() == "precious"


LINKED = ["data", "data/reward", "data/reward/zarr.json", "data/reward/c", "meta/seed", "zarr.json"]


@pytest.mark.parametrize("name", LINKED)
def test_a_dataset_whose_links_lead_out_of_it_is_refused(path, tmp_path, name, capsys):
    record(path, 1)
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideDataset, match="COPY"):
        EpisodeDataset(path)
    with pytest.raises(OutsideDataset, match="COPY"):
        record(path, 1)
    with pytest.raises(OutsideDataset, match="COPY"):
        next(read_episodes(path))
    for words in (["inspect", path], ["import", path, tmp_path / "out.zarr"]):
        assert cli.main([str(word) for word in words]) == cli.EXIT_ERROR
        assert f"{name} -> {tmp_path / 'elsewhere'}" in capsys.readouterr().err


def test_a_dataset_may_link_within_itself_and_lie_behind_a_link(path, tmp_path):
    record(path, 1)
    (path / "data/reward").rename(path / "reward")
    (path / "data/reward").symlink_to("../reward")
    (tmp_path / "link.zarr").symlink_to(path)
    assert len(EpisodeDataset(tmp_path / "link.zarr").read("reward")) == 2


def test_one_writer_at_a_time(path):
    with EpisodeWriter(path, make_schema()) as writer:
        with pytest.raises(DatasetError, match="another writer"):
            EpisodeWriter(path, make_schema())
        append_known(writer)
    EpisodeWriter(path, make_schema()).close()


def test_unknown_fields_and_episodes(path):
    record(path, 1)
    dataset = EpisodeDataset(path)
    with pytest.raises(DatasetError, match=r"no field 'state/tcp_pos'.*state/tcp_pose"):
        dataset.read("state/tcp_pos")
    with pytest.raises(IndexError, match="1 episodes"):
        dataset.episode(1)


def chunk_file(path, name):
    (file,) = [p for p in (path / name / "c").rglob("*") if p.is_file()]
    return file


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_damaged_rows_are_reported_by_field(path, damage):
    record(path, 3)
    file = chunk_file(path, "data/state/tcp_pose")
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    dataset = EpisodeDataset(path)
    with pytest.raises(DatasetDamaged, match="state/tcp_pose"):
        dataset.read("state/tcp_pose")
    assert dataset.read("action").shape == (14, 2)
    with (
        EpisodeWriter(path, make_schema()) as writer,
        pytest.raises(DatasetDamaged, match="state/tcp_pose"),
    ):
        append_known(writer)
    assert len(EpisodeDataset(path)) == 3


@pytest.mark.parametrize("name", ["data/state/tcp_pose", "meta/seed", "meta/episode_ends"])
def test_an_array_of_format_2_whose_codecs_may_run_code_is_not_opened(path, name):
    record(path, 1)
    content = zarr.open_array(path / name, mode="r")[:]
    shutil.rmtree(path / name)
    zarr.create_array(path / name, data=content, zarr_format=2)
    with pytest.raises(DatasetDamaged, match=name.removeprefix("data/")):
        EpisodeDataset(path).episode(0)


def test_lost_episode_ends_are_not_taken_for_an_empty_dataset(path):
    record(path, 3)
    chunk_file(path, "meta/episode_ends").unlink()
    with pytest.raises(DatasetDamaged, match="episode_ends"):
        EpisodeDataset(path)
    with pytest.raises(DatasetDamaged, match="episode_ends"):
        EpisodeWriter(path, make_schema())


def test_the_module_loads_no_torch():
    modules = "sys, robot_rl.data.episodes, robot_rl.replay.sampler"
    code = f"import {modules}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_many_short_episodes_are_written_in_few_blocks(path, monkeypatch):
    writes = []
    put = zarr.Array.__setitem__
    monkeypatch.setattr(
        zarr.Array, "__setitem__", lambda *arguments: (writes.append(1), put(*arguments))
    )
    schema = make_schema()
    rows = schema.unpack(b"".join(map(schema.pack, make_rows(1, length=5))))
    with DatasetSink(path, schema, {}) as sink:
        for seed in range(400):
            sink.add(Episode(rows, seed, "", success=False, source=1))
    dataset = EpisodeDataset(path)
    assert dataset.seeds.tolist() == list(range(400))
    np.testing.assert_array_equal(dataset.whole(399).rows, rows)
    assert len(writes) <= 2 * (len(schema.fields) + 6)


@pytest.mark.parametrize(("field", "value"), [("action", 7.0), ("state/tcp_pose", np.nan)])
def test_values_that_no_row_may_have_are_not_taken_over(path, field, value):
    schema = make_schema()
    rows = schema.unpack(b"".join(map(schema.pack, make_rows(1)))).copy()
    rows[field][0] = value
    with DatasetSink(path, schema, {}) as sink, pytest.raises(SchemaMismatch, match=field):
        sink.add(Episode(rows, 0, "", success=False, source=1))
