"""What leaves a store while a server writes it, and what `robot-rl inspect` says of it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl import cli
from robot_rl.data.episodes import Episode, EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import Field, RowSchema, row_schema
from robot_rl.data.transfer import DatasetEpisodes, Selection
from robot_rl.extras.importers.import_dataset import import_episodes
from robot_rl.processes.signals import StopEvent
from robot_rl.replay import StoreError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.episode_records import EpisodeRecord
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_reader import StoreEpisodes, StoreReader


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


def facts(seed: int) -> dict[str, object]:
    return {"task": "reach", "seed": seed, "instruction": f"reach {seed}"}


def rows_equal(dataset: EpisodeDataset, index: int, rows) -> None:
    stored = dataset.episode(index)
    for name, column in stored.items():
        np.testing.assert_array_equal(column, np.stack([row[name] for row in rows]), name)


def records(store: Path) -> list[EpisodeRecord]:
    with StoreReader(store) as reader:
        return reader.episodes()


def test_export_takes_whole_episodes_while_an_actor_writes(
    server, schema, make_episode, tmp_path, capsys
):
    sent = []
    stop = StopEvent()

    def act() -> None:
        with ReplayClient(server.store) as client:
            client.open_session(schema, metadata={"robot": "sim"})
            while not stop.is_set():
                rows = make_episode(3 + len(sent) % 4)
                sent.append(rows)
                for index, row in enumerate(rows):
                    client.append(row, facts(len(sent) - 1) if index == 0 else None)
                    time.sleep(0.01)  # the pace of an actor

    actor = threading.Thread(target=act)
    actor.start()
    try:
        while len(sent) < 6:
            stop.wait(0.01)
        assert run("export", server.store, tmp_path / "out") == 0
    finally:
        stop.set()
        actor.join()
    dataset = EpisodeDataset(tmp_path / "out")
    assert 4 <= len(dataset) < len(sent)
    assert dataset.metadata == {"robot": "sim"}
    assert dataset.seeds.tolist() == list(range(len(dataset)))
    assert dataset.instructions[3] == "reach 3"
    for index in range(len(dataset)):
        rows_equal(dataset, index, sent[index])


def test_options_choose_among_the_episodes(client, server, schema, make_episode, tmp_path, capsys):
    client.open_session(schema)
    corrected = make_episode(3)
    corrected[1]["source"], corrected[1]["intervened"] = np.uint8(2), np.True_
    solved = make_episode(2, terminated=True)
    solved[-2]["success"] = np.True_
    kinds = {"demo": make_episode(2, source=0), "policy": solved, "intervention": corrected}
    for seed, rows in enumerate(kinds.values()):
        client.append_episode(rows, facts(seed))
    client.append(make_episode(2)[0], facts(9))  # stays open
    client.flush()
    for index, (source, rows) in enumerate(kinds.items()):
        assert run("export", server.store, tmp_path / source, f"source={source}") == 0
        dataset = EpisodeDataset(tmp_path / source)
        assert dataset.seeds.tolist() == [index]
        assert dataset.sources.tolist() == [index]
        rows_equal(dataset, 0, rows)
    assert "1 open episodes left out" in capsys.readouterr().out
    assert run("export", server.store, tmp_path / "solved", "success=true") == 0
    assert EpisodeDataset(tmp_path / "solved").successes.tolist() == [True]
    assert run("export", server.store, tmp_path / "failed", "success=false") == 0
    assert EpisodeDataset(tmp_path / "failed").seeds.tolist() == [0, 2]
    words = ("source=demo", "success=true")
    assert run("export", server.store, tmp_path / "none", *words) == cli.EXIT_ERROR
    assert "no episode" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_cut_episode_ends_at_its_last_stored_observation(
    client, server, schema, make_episode, tmp_path, capsys
):
    """An actor was killed in the middle, and the server closed the episode without a final row."""
    cut = make_episode(6)[:4]
    terminated = make_episode(3, terminated=True)[:3]
    single = make_episode(2)[:1]
    for session, rows in enumerate((cut, terminated, single)):
        client.open_session(schema, session=session)
        for index, row in enumerate(rows):
            client.append(row, facts(session) if index == 0 else None)
    client.open_session(schema, session=3)
    client.close()
    assert run("export", server.store, tmp_path / "out") == 0
    assert "1 left out" in " ".join(capsys.readouterr().out.split()).replace("episodes ", "")
    dataset = EpisodeDataset(tmp_path / "out")
    assert dataset.seeds.tolist() == [0, 1]
    episode = dataset.episode(0)
    assert episode["is_last"].tolist() == [False, False, False, True]
    assert episode["truncated"].tolist() == [False, False, True, False]
    for step in range(4):
        np.testing.assert_array_equal(episode["state/x"][step], cut[step]["state/x"])
        np.testing.assert_array_equal(episode["images/front"][step], cut[step]["images/front"])
    for step in range(3):
        np.testing.assert_array_equal(episode["action"][step], cut[step]["action"])
    assert not episode["action"][3].any()
    whole = dataset.episode(1)
    assert whole["terminated"].tolist() == [False, False, True, False]
    assert whole["is_last"].tolist() == [False, False, False, True]
    assert whole["stamp_observation"][3] == 0
    capsys.readouterr()
    assert run("inspect", server.store) == 0
    assert "3 episodes (3 sealed, 3 of them cut; 0 open)" in capsys.readouterr().out


def test_an_episode_that_is_evicted_meanwhile_is_left_out(start_server, schema, make_episode):
    server = start_server(capacity_rows=12)
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        for seed in range(3):
            client.append_episode(make_episode(3), facts(seed))
        client.flush()
        listed = StoreEpisodes(server.store, Selection())
        reader = listed.episodes()
        assert next(reader).seed == 0
        for seed in (3, 4):  # now the first two go
            client.append_episode(make_episode(3), facts(seed))
            client.flush()
        assert [episode.seed for episode in reader] == [2]
        assert listed.left_out == 1


@pytest.mark.parametrize(
    ("format", "moment"),
    [pytest.param("zarr", "", marks=pytest.mark.slow), ("zarr", "data"), ("lerobot", "data")],
)
def test_ctrl_c_leaves_nothing_half(client, server, schema, make_episode, tmp_path, format, moment):
    client.open_session(schema)
    for seed in range(150):
        client.append_episode(make_episode(2), facts(seed))
    client.flush()
    words = ["export", str(server.store), "out", f"format={format}"]
    command = [sys.executable, "-m", "robot_rl.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(f".out.*.partial/{moment}")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == cli.EXIT_INTERRUPTED
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_inspect_says_what_a_live_store_holds(client, server, schema, make_episode, capsys):
    client.open_session(schema)
    for seed, source in enumerate((0, 0, 1, 1, 1)):
        rows = make_episode(4, source=source, terminated=True)
        rows[-2]["success"] = np.bool_(seed in (0, 1, 3))
        for row in rows:
            row["stamp_observation"] = np.int64(1_790_000_000_000_000_000 + seed * 60_000_000_000)
        client.append_episode(rows, facts(seed))
    client.append(make_episode(4)[0], facts(5))
    client.put_weights("policy", 1200, b"tensors")
    client.flush()
    assert run("inspect", server.store) == 0
    page = capsys.readouterr().out
    lines = [line.split() for line in page.splitlines()]
    assert "weights policy: version 1200" in page
    assert "6 episodes (5 sealed, 0 of them cut; 1 open), 21 steps, 3 successful" in page
    assert ["demo", "2", "2", "2", "(100", "%)", "8"] in lines
    assert ["policy", "4", "3", "1", "(33", "%)", "13"] in lines
    assert f"26 rows of {schema.dtype.itemsize:,} bytes in 1 sessions" in page
    assert "no row is missing" in page
    assert "(0:04:00)" in page
    assert "MB on disk" in page
    assert "images/front" in page
    assert "evicted" not in page
    assert run("inspect", server.store, "json=true") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["kind"], content["path"]) == ("store", str(server.store))
    assert f"identity {content['identity']}" in page
    assert content["weights"] == {"policy": 1200}
    assert (content["rows"], content["episodes"], content["sealed"], content["steps"]) == (
        26,
        6,
        5,
        21,
    )
    assert content["sources"]["demo"] == {"episodes": 2, "sealed": 2, "successes": 2, "steps": 8}
    assert (content["missing_rows"], content["evicted_rows"]) == ({}, 0)
    assert RowSchema.from_json(json.dumps(content["schema"])) == schema


def test_inspect_tells_damage_from_eviction(start_server, schema, make_episode, capsys):
    server = start_server(capacity_rows=15)
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        for seed in range(4):
            client.append_episode(make_episode(4), facts(seed))
            client.flush()
    server.stop()
    third = records(server.store)[1]
    (file,) = (server.store / "rows").glob(f"*-{third.first_sequence:012d}.rows")
    os.truncate(file, file.stat().st_size - 3 * schema.dtype.itemsize // 2)
    assert run("inspect", server.store) == 0
    page = capsys.readouterr().out
    assert "3 episodes (3 sealed" in page
    assert f"DAMAGED: 2 rows are missing, of 1 episodes: {third.identifier}" in page
    assert "5 rows were evicted" in page.splitlines()
    with pytest.raises(StoreError, match=r"fewer rows than its catalogue knows.*rebuild=true"):
        StoreWriter(server.store)
    assert run("inspect", server.store, "rebuild=true") == 0
    printed = capsys.readouterr()
    assert "rebuilt the catalogue: 3 episodes" in printed.err
    assert "no row is missing" in printed.out


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[Path]:
    """A store of its own whose server runs."""
    stop = StopEvent()
    server = ReplayServer(tmp_path / "other")
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    yield tmp_path / "other"
    stop.set()
    thread.join()


def annotate(client: ReplayClient, store: Path) -> dict[str, np.ndarray]:
    """Score the second episode of the table twice, the later rows; return its columns."""
    episode = records(store)[1]
    scores = np.zeros(episode.rows, np.float32)
    versions, valid = np.zeros(episode.rows, np.int64), np.zeros(episode.rows, np.bool_)
    for version, start in ((3, 1), (8, 3)):
        values = np.random.default_rng(version).uniform(size=episode.rows - start)
        scores[start:], versions[start:], valid[start:] = values, version, True
        rows = episode.sequences[start:]
        new = Annotations(episode.session_key, "score/a", version, rows, scores[start:])
        client.annotate(new)
    return {"value": scores, "version": versions, "valid": valid}


def test_annotations_go_with_an_export_and_leave_the_recording_usable(
    client, server, schema, make_episode, tmp_path
):
    client.open_session(schema)
    for seed in range(2):
        client.append_episode(make_episode(5, terminated=True), facts(seed))
    client.flush()
    columns = annotate(client, server.store)
    assert run("export", server.store, tmp_path / "zarr") == 0
    assert run("export", server.store, tmp_path / "lerobot", "format=lerobot") == 0
    assert run("import", tmp_path / "lerobot", tmp_path / "back") == 0
    for name, rows in (("zarr", 6), ("back", 5)):  # LeRobot keeps no final observation
        dataset = EpisodeDataset(tmp_path / name).expect(schema)
        assert dataset.episode(1).keys() == {field.name for field in schema.fields}
        for part, expected in columns.items():
            found = dataset.read(f"annotation/score/a/{part}")
            np.testing.assert_array_equal(found[6 : 6 + rows], expected[:rows], part)
            assert not found[:6].any()


def test_an_import_into_a_running_store_adds_each_row_once(
    client, server, other_store, schema, make_episode, tmp_path, capsys
):
    client.open_session(schema)
    for seed in range(3):
        client.append_episode(make_episode(4, source=seed % 2), facts(seed))
    client.flush()
    columns = annotate(client, server.store)
    assert run("export", server.store, tmp_path / "out") == 0
    with ReplayClient(other_store) as actor:  # somebody else is writing
        actor.open_session(schema)
        actor.append_episode(make_episode(4), facts(9))

    def stop_after_two(_: Episode) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    seen: list[int] = []
    source = DatasetEpisodes(tmp_path / "out", Selection())
    with ReplayClient(other_store) as sender, pytest.raises(KeyboardInterrupt):
        import_episodes(source, sender, stop_after_two)
    assert len(records(other_store)) == 1 + 2
    assert run("import", tmp_path / "out", other_store) == 0
    assert f"imported 1 episodes (5 rows) into {other_store}" in capsys.readouterr().out
    for _ in range(2):
        assert run("import", tmp_path / "out", other_store) == 0
        assert "imported 0 episodes (0 rows)" in capsys.readouterr().out
    former, reader = StoreReader(server.store), StoreReader(other_store)
    stored = [e for e in reader.episodes() if e.metadata["seed"] != 9]
    for old, new in zip(former.episodes(), stored, strict=True):
        np.testing.assert_array_equal(former.read_episode(old), reader.read_episode(new))
        assert (old.metadata, old.source, new.sealed) == (new.metadata, new.source, True)
    found = reader.annotations("score/a", stored[1])
    for part, values in zip(("valid", "version", "value"), found, strict=True):
        np.testing.assert_array_equal(values, columns[part], part)
    former.close()
    reader.close()


def test_an_import_of_other_columns_or_without_a_server_is_one_clear_error(
    client, server, schema, make_episode, tmp_path, capsys
):
    client.open_session(schema)
    client.append_episode(make_episode(2), facts(1))
    client.flush()
    other = row_schema("reach", [Field("state/x", "float32", (2,))], ["dx"], 10.0)
    with EpisodeWriter(tmp_path / "out", other) as writer:
        rows = make_episode(2, schema=other)
        writer.append(rows, seed=0, instruction="", success=True, source=1)
    assert run("import", tmp_path / "out", server.store) == cli.EXIT_ERROR
    assert "action_names differs" in capsys.readouterr().err
    server.stop()
    assert run("import", tmp_path / "out", server.store) == cli.EXIT_ERROR
    assert "no server of" in capsys.readouterr().err
