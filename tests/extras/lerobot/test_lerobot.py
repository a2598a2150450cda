"""Episodes that go out to LeRobot's layout and come back, through the command line."""

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from demonstrations import DATA, FRONT, INFO, INSTRUCTIONS, LENGTHS, RATE, RECORDS, run

from robot_rl import cli
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import Field, row_schema
from robot_rl.data.transfer import DatasetEpisodes, Selection
from robot_rl.env.factory import make_env
from robot_rl.extras.lerobot.lerobot_writer import LeRobotSink, VideoFile
from robot_rl.extras.lerobot.plugin import open_lerobot

CAMERAS = ("images/front", "images/left/wrist")


def both(folder: Path) -> tuple[EpisodeDataset, EpisodeDataset]:
    return EpisodeDataset(folder / "recorded.zarr"), EpisodeDataset(folder / "imported.zarr")


def test_everything_but_pictures_comes_back_equal(folder: Path):
    recorded, imported = both(folder)
    assert imported.schema == recorded.schema
    assert imported.metadata == recorded.metadata
    assert imported.seeds.tolist() == recorded.seeds.tolist()
    assert imported.successes.tolist() == recorded.successes.tolist()
    assert imported.sources.tolist() == recorded.sources.tolist()
    assert imported.instructions == recorded.instructions == list(INSTRUCTIONS)
    for episode, steps in enumerate(LENGTHS):
        before, after = recorded.episode(episode), imported.episode(episode)
        kept = steps if recorded.successes[episode] else steps - 1
        for name in set(before) - set(CAMERAS) - {"truncated"}:
            np.testing.assert_array_equal(after[name][:kept], before[name][:kept], name)
            assert after[name].dtype == before[name].dtype


def test_pictures_come_back_with_small_losses(folder: Path):
    recorded, imported = both(folder)
    for episode, steps in enumerate(LENGTHS):
        before, after = recorded.episode(episode), imported.episode(episode)
        for name in CAMERAS:
            errors = [
                np.abs(before[name][:steps].astype(int) - picture).mean(axis=(1, 2, 3))
                for picture in after[name][:steps]
            ]
            assert np.diagonal(errors).max() < 3, name
        front = np.abs(before["images/front"][:steps, None].astype(int) - after["images/front"])
        assert before["images/front"].std() > 20  # a real picture, nothing flat
        # The camera moves: a picture that came a step early or late would be found out.
        nearest = front.mean(axis=(2, 3, 4)).argmin(axis=0)[:-1]
        assert nearest.tolist() == list(range(len(nearest)))


def test_an_episode_that_terminated_keeps_its_last_step_and_marks_the_final_row(folder: Path):
    recorded, imported = both(folder)
    for episode in (0, 1):
        before, after = recorded.episode(episode), imported.episode(episode)
        assert len(after["is_last"]) == LENGTHS[episode] + 1
        assert after["terminated"][-2]
        assert after["success"][-2]
        assert after["is_last"][-1]
        assert after["stamp_observation"][-1] == 0
        assert after["episode_step"][-1] == LENGTHS[episode]
        assert not after["action"][-1].any()
        np.testing.assert_array_equal(after["state/tcp_pose"][-1], before["state/tcp_pose"][-2])
        np.testing.assert_array_equal(after["last_command"][:-1], before["last_command"][:-1])
        np.testing.assert_array_equal(after["last_command"][-1], before["action"][-2])


def test_an_episode_that_did_not_terminate_ends_at_its_last_real_observation(folder: Path):
    recorded, imported = both(folder)
    before, after = recorded.episode(2), imported.episode(2)
    steps = LENGTHS[2]
    assert len(after["is_last"]) == steps  # one step less
    assert after["is_last"].tolist() == [False] * (steps - 1) + [True]
    assert after["truncated"].tolist() == [False] * (steps - 2) + [True, False]
    kept = ("last_command", "base_action", "stamp_observation", "episode_step", "source")
    for name in ("state/tcp_pose", *kept):
        np.testing.assert_array_equal(after[name][-1], before[name][-2], name)
    for name in ("action", "policy_action", "reward", "policy_version", "stamp_action"):
        assert not after[name][-1].any(), name


def test_what_was_imported_serves_as_the_dataset_of_a_task(tmp_path: Path):
    env = make_env(compose(["task=reach"]))
    env.close()
    rows = [{f.name: np.zeros(f.shape, f.dtype) for f in env.schema.fields} for _ in range(5)]
    rows[-2]["terminated"] = rows[-2]["success"] = rows[-1]["is_last"] = np.True_
    with EpisodeWriter(tmp_path / "in", env.schema) as writer:
        writer.append(rows, seed=1, success=True, source=0)
    assert run("export", tmp_path / "in", tmp_path / "out", "format=lerobot") == 0
    assert run("import", tmp_path / "out", tmp_path / "back") == 0
    assert EpisodeDataset(tmp_path / "back").expect(env.schema).successes.tolist() == [True]


def test_the_layout_is_lerobots(folder: Path):
    root = folder / "lerobot"
    info = json.loads((root / "meta/info.json").read_text())
    frames = sum(LENGTHS)
    expected = {
        "codebase_version": "v3.0",
        "fps": RATE,
        "robot_type": "sim",
        "total_episodes": 3,
        "total_frames": frames,
        "total_tasks": 3,
        "splits": {"train": "0:3"},
        "chunks_size": 1000,
    }
    assert {name: info[name] for name in expected} == expected
    assert info["data_path"].format(chunk_index=0, file_index=0) == DATA
    key = "observation.images.front"
    assert info["video_path"].format(video_key=key, chunk_index=0, file_index=0) == FRONT
    features = info["features"]
    assert not any("/" in name for name in features)
    assert features["observation.state"]["names"] == [
        "gripper_position",
        *(f"tcp_pose.{index}" for index in range(7)),
    ]
    assert features["observation.environment_state"]["shape"] == [14]
    assert features["action"] == {"dtype": "float32", "shape": [3], "names": ["x", "y", "yaw"]}
    assert features["complementary_info.state.encoder_ticks"]["dtype"] == "int32"
    assert features["observation.images.left.wrist"]["shape"] == [33, 47, 3]
    assert features["observation.images.left.wrist"]["dtype"] == "video"
    table = pq.read_table(root / DATA)
    tabular = [name for name, feature in features.items() if feature["dtype"] != "video"]
    assert sorted(table.column_names) == sorted(tabular)
    assert table.schema.field("action").type == pa.list_(pa.float32(), 3)
    assert table.schema.field("next.reward").type == pa.float32()


def test_frames_are_numbered_as_lerobot_reads_them(folder: Path):
    root = folder / "lerobot"
    frames = pq.read_table(root / DATA).to_pydict()
    lengths = list(LENGTHS)
    assert frames["index"] == list(range(sum(lengths)))
    assert frames["episode_index"] == [e for e, n in enumerate(lengths) for _ in range(n)]
    assert frames["frame_index"] == [i for n in lengths for i in range(n)]
    np.testing.assert_allclose(frames["timestamp"], np.array(frames["frame_index"]) / RATE)
    done = [i == n - 1 for n in lengths for i in range(n)]
    assert frames["next.done"] == done
    records = pq.read_table(root / RECORDS).to_pydict()
    assert records["length"] == lengths
    assert records["dataset_from_index"] == [0, 7, 8]
    assert records["dataset_to_index"] == [7, 8, 20]
    prefix = "videos/observation.images.front"
    np.testing.assert_allclose(records[f"{prefix}/from_timestamp"], np.array([0, 7, 8]) / RATE)
    np.testing.assert_allclose(records[f"{prefix}/to_timestamp"], np.array([7, 8, 20]) / RATE)
    tasks = pq.read_table(root / "meta/tasks.parquet")
    names = dict(zip(*(tasks[n].to_pylist() for n in ("task_index", "task")), strict=True))
    # What has no instruction goes by the name of the task.
    wanted = [INSTRUCTIONS[0], "peg_insert", INSTRUCTIONS[2]]
    assert [names[index] for index in frames["task_index"]] == [
        wanted[episode] for episode in frames["episode_index"]
    ]
    assert records["tasks"] == [[task] for task in wanted]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_the_picture_at_an_episodes_time_is_its_own(folder: Path):
    records = pq.read_table(folder / "lerobot" / RECORDS).to_pydict()
    rate = Fraction(25, 2)
    with av.open(str(folder / "lerobot" / FRONT)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == rate
        decoded = {frame.pts * stream.time_base: frame for frame in container.decode(stream)}
    assert list(decoded) == [number / rate for number in range(sum(LENGTHS))]
    recorded = EpisodeDataset(folder / "recorded.zarr")
    for episode, start in enumerate(records["videos/observation.images.front/from_timestamp"]):
        frame = decoded[Fraction(start).limit_denominator(1000)]
        first = recorded.episode(episode)["images/front"][0]
        assert np.abs(frame.to_ndarray(format="rgb24").astype(int) - first).mean() < 3


def test_an_episode_is_decoded_without_the_one_before_it(tmp_path: Path):
    path, video = tmp_path / "camera.mp4", VideoFile(Fraction(10))
    pictures = np.full((3, 32, 32, 3), 99, np.uint8)  # nothing moves: no other reason for a key
    times = [video.add(path, pictures) for _ in range(3)]
    video.close()
    assert times == [(0.0, 0.3), (0.3, 0.6), (0.6, 0.9)]
    with av.open(str(path)) as container:
        keys = [frame.key_frame for frame in container.decode(container.streams.video[0])]
    assert [keys[index] for index in (0, 3, 6)] == [True, True, True]
    assert not keys[1]


def test_tables_that_another_tool_has_regrouped_are_read(copy: Path, tmp_path: Path, folder: Path):
    table = pq.read_table(copy / DATA)
    pq.write_table(table, copy / DATA, row_group_size=6)
    assert run("import", copy, tmp_path / "back") == 0
    _, before = both(folder)
    after = EpisodeDataset(tmp_path / "back")
    for name, column in before.arrays(before.schema.dtype.names).items():
        np.testing.assert_array_equal(after.read(name), column, name)


def test_statistics_are_those_of_the_frames(folder: Path):
    root = folder / "lerobot"
    statistics = json.loads((root / "meta/stats.json").read_text())
    frames = pq.read_table(root / DATA).to_pydict()
    features = json.loads((root / "meta/info.json").read_text())["features"]
    assert set(statistics) == set(features)
    for name in ("action", "observation.state", "next.reward", "next.done"):
        values = np.array(frames[name], np.float64).reshape(sum(LENGTHS), -1)
        found = statistics[name]
        for kind in ("min", "max", "mean", "std"):
            expected = getattr(np, kind)(values, axis=0)
            np.testing.assert_allclose(np.float64(found[kind]), expected, atol=1e-7)
        parts = np.split(values, np.cumsum(LENGTHS)[:-1])  # as LeRobot joins quantiles
        expected = np.average([np.quantile(p, 0.9, axis=0) for p in parts], 0, LENGTHS)
        np.testing.assert_allclose(found["q90"], expected)
        assert found["count"] == [sum(LENGTHS)]
    recorded = EpisodeDataset(folder / "recorded.zarr")
    parts = [recorded.episode(e)["images/front"][:-1] for e in range(3)]
    pixels = np.concatenate(parts) / 255
    found = statistics["observation.images.front"]
    assert np.shape(found["mean"]) == (3, 1, 1)
    for kind in ("min", "max", "mean", "std"):
        expected = getattr(np, kind)(pixels, axis=(0, 1, 2))
        np.testing.assert_allclose(np.ravel(found[kind]), expected, atol=1e-9)
    records = pq.read_table(root / RECORDS).to_pydict()
    third = np.array(frames["action"])[8:]
    np.testing.assert_allclose(records["stats/action/mean"][2], third.mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(
        np.ravel(records["stats/observation.images.front/max"][1]), parts[1].max((0, 1, 2)) / 255
    )


def test_long_recordings_are_cut_into_several_files(folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("robot_rl.extras.lerobot.layout.EPISODES_PER_FILE", 1)
    source = DatasetEpisodes(folder / "recorded.zarr", Selection())
    (tmp_path / "small").mkdir()
    with LeRobotSink(tmp_path / "small", source.schema, source.metadata) as sink:
        for episode in source.episodes():
            sink.add(episode)
    for pattern in ("data/*/*.parquet", "videos/observation.images.front/*/*.mp4"):
        names = sorted(path.name for path in (tmp_path / "small").glob(pattern))
        assert [Path(name).stem for name in names] == ["file-000", "file-001", "file-002"]
    whole = list(open_lerobot(folder / "lerobot").episodes())
    cut = list(open_lerobot(tmp_path / "small").episodes())
    plain = [name for name in source.schema.dtype.names if name not in CAMERAS]
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one.rows[plain], other.rows[plain])
        assert np.abs(one.rows["images/front"].astype(int) - other.rows["images/front"]).mean() < 3


def test_options_choose_among_the_episodes_of_a_dataset(folder: Path, tmp_path: Path, capsys):
    recorded = folder / "recorded.zarr"
    assert run("export", recorded, tmp_path / "demo", "source=demo") == 0
    assert run("export", recorded, tmp_path / "failed", "success=false") == 0
    assert EpisodeDataset(tmp_path / "demo").seeds.tolist() == [2**40]
    assert EpisodeDataset(tmp_path / "failed").seeds.tolist() == [2**40 + 2]
    capsys.readouterr()
    words = ("source=policy", "success=true")
    assert run("export", recorded, tmp_path / "none", *words) == cli.EXIT_ERROR
    assert "no episode" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_zarr_to_zarr_is_the_same_dataset(folder: Path, tmp_path: Path):
    assert run("import", folder / "recorded.zarr", tmp_path / "copy") == 0
    before, after = EpisodeDataset(folder / "recorded.zarr"), EpisodeDataset(tmp_path / "copy")
    assert (after.schema, after.metadata) == (before.schema, before.metadata)
    for name, column in before.arrays(before.schema.dtype.names).items():
        np.testing.assert_array_equal(after.read(name), column)


def test_a_dataset_without_cameras_has_no_videos(tmp_path: Path):
    schema = row_schema("t", [Field("state/x", "float32", (2,))], ["x"], 30.0)
    rows = [{f.name: np.zeros(f.shape, f.dtype) for f in schema.fields} for _ in range(4)]
    rows[-2]["terminated"] = rows[-1]["is_last"] = np.True_
    with EpisodeWriter(tmp_path / "in", schema) as writer:
        writer.append(rows, seed=1, success=False, source=1)
    assert run("export", tmp_path / "in", tmp_path / "out", "format=lerobot") == 0
    info = json.loads((tmp_path / "out" / INFO).read_text())
    assert (info["fps"], info["video_path"], info["robot_type"]) == (30, None, None)
    assert isinstance(info["fps"], int)
    assert not (tmp_path / "out" / "videos").exists()
    assert run("import", tmp_path / "out", tmp_path / "back") == 0
    assert EpisodeDataset(tmp_path / "back").rows_total == 4


def test_inspect_says_what_a_lerobot_dataset_holds(folder: Path, capsys):
    assert run("inspect", folder / "lerobot") == 0
    page = capsys.readouterr().out
    assert f"3 episodes, {sum(LENGTHS)} steps, 2 successful" in page
    assert "images/left/wrist" in page
