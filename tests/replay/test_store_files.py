"""A store's files: what is found after a kill, without a catalogue, and in damaged folders."""

import errno
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from store_writing import Recording, numbers, read_back, sampler_of

from robot_rl.commands.api import read_episodes
from robot_rl.replay import SessionTaken, StoreError
from robot_rl.replay import store as store_module
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.protocol import Annotations, WeightsRecord
from robot_rl.replay.row_file import RowFile
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.store import StoreWriter, rebuild_catalogue
from robot_rl.replay.store_files import read_weights, segments_of, write_weights
from robot_rl.replay.store_reader import StoreReader, summarize_store


def assert_same(found, expected):
    assert [e for e, _ in found] == [e for e, _ in expected]
    for (_, rows), (_, wanted) in zip(found, expected, strict=True):
        assert rows.tobytes() == wanted.tobytes()


@pytest.fixture
def store(tmp_path, schema, make_episode):
    """A store with two sessions: the first with a cut episode, the second with an open one."""
    writer = StoreWriter(tmp_path / "store")
    first = Recording(writer, schema)
    first.put(make_episode(4, terminated=True))
    at = writer.session(first.key).next_sequence
    facts = {at: {"task": "reach", "seed": 7, "instruction": "führe"}}
    assert writer.append([first.batch(make_episode(3), at, facts)]) == [None]
    first.put(make_episode(5)[:3])
    second = Recording(writer, schema)
    second.put(make_episode(2))
    second.put(make_episode(6)[:4])
    episode = read_back(writer.path)[0][0]
    place, rows = episode.session_key, episode.sequences
    values = np.arange(5, dtype=np.float32)
    assert writer.annotate(Annotations(place, "reward", 1, rows, values)) == 5
    writer.close()
    return writer.path


def test_a_session_is_a_file_that_numpy_shows(store, schema):
    for segment in segments_of(store):
        header = RowFile.open(segment.path).header_bytes
        rows = np.memmap(segment.path, schema.dtype, "r", header)
        stored = [r for e, r in read_back(store) if e.session_key == segment.key]
        assert rows.tobytes() == np.concatenate(stored).tobytes()


def test_episodes_that_the_catalogue_never_heard_of_are_found(store, schema, make_episode):
    before = read_back(store)
    writer = StoreWriter(store)
    more = Recording(writer, schema, actor=2)
    writer._catalogue.put_episodes = lambda records: None  # killed between rows and catalogue
    more.put(make_episode(3))
    more.put(make_episode(4)[:2])
    writer._lock_file.close()
    assert_same(read_back(store), before)
    writer = StoreWriter(store)
    found = read_back(store)
    assert [(e.rows, e.sealed) for e, _ in found[len(before) :]] == [(4, True), (2, False)]
    assert writer.statistics()["rows"] == sum(len(rows) for _, rows in found)
    writer.close()


@pytest.mark.parametrize("lost", ["all", "damaged", "emptied"])
def test_a_catalogue_is_made_anew_from_the_rows(store, lost):
    before = read_back(store)
    if lost == "all":
        for file in store.glob("catalogue*"):
            file.unlink()
    else:
        content = b"no catalogue" * 1000 if lost == "damaged" else b""
        (store / "catalogue.sqlite").write_bytes(content)
    for open_it in (StoreReader, StoreWriter):  # a new catalogue would know none of the rows
        with pytest.raises(StoreError, match="rebuild=true"):
            open_it(store)
    assert "5 episodes; 0 annotations" in rebuild_catalogue(store)
    assert_same(read_back(store), before)
    assert before[1][0].metadata == {"task": "reach", "seed": 7, "instruction": "führe"}
    assert [e.cut for e, _ in before] == [False, False, True, False, False]


def test_annotations_are_taken_over_where_the_old_catalogue_tells_them(store):
    with StoreReader(store) as reader:
        identity = reader.identity
        known = reader.annotations("reward", reader.episodes()[0])
    assert "5 annotations" in rebuild_catalogue(store)
    with StoreReader(store) as reader:
        assert reader.identity == identity
        again = reader.annotations("reward", reader.episodes()[0])
    for one, other in zip(known, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_torn_row_is_no_row_and_is_cut_by_the_writer(store, schema, make_episode):
    before = read_back(store)
    last = segments_of(store)[-1]
    whole = last.path.stat().st_size
    with last.path.open("ab") as file:
        file.write(schema.pack(make_episode(1)[0])[:-1])
    assert_same(read_back(store), before)
    writer = StoreWriter(store)
    owner = writer.session(last.key).owner
    recording = Recording(writer, schema, session=1, owner=owner)
    recording.put(make_episode(6)[4:])
    writer.close()
    assert last.path.stat().st_size == whole + 3 * schema.dtype.itemsize
    assert [e.rows for e, _ in read_back(store)][-1] == 7


def test_a_file_whose_making_was_cut_off_is_no_file(store):
    before = read_back(store)
    left = store / "rows" / "a0-s9-000000000000.rows"
    for content in (b"", bytes(4096)):
        left.write_bytes(content)
        StoreWriter(store).close()
        assert not left.exists()
    assert_same(read_back(store), before)


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_catalogue_is_made_anew_beside_a_file_whose_making_was_cut_off(store, content):
    before = read_back(store)
    left = store / "rows" / "a0-s9-000000000000.rows"
    left.write_bytes(content)
    assert "5 episodes" in rebuild_catalogue(store)
    assert not left.exists()
    assert_same(read_back(store), before)


FORGED = [
    *(f"UPDATE about SET metadata = '{text}'" for text in ("{bad", "[1]", "[" * 99_999)),
    "UPDATE about SET metadata = NULL",
    "UPDATE about SET evicted = '{\"rows\": -1}'",
    *(f"UPDATE episodes SET steps = {v}" for v in ("'x'", "'[1'", "'[1]'", "'[1,-1,0]'", "-5")),
    *(f"UPDATE episodes SET metadata = {value}" for value in ("'x'", "'[1'", "-5", "NULL")),
    *(f"UPDATE episodes SET {c} = NULL" for c in ("steps", "sealed", "source", "actor")),
    *(
        f"UPDATE episodes SET {column} = {value}"
        for column in ("first_sequence", "rows")
        for value in ("'x'", "NULL", "1e300", "-1", "0.5", "9223372036854775807")
    ),
    "UPDATE episodes SET source = 'nobody'",
    "UPDATE sessions SET actor = 'x'",
    "DELETE FROM about",
    "INSERT INTO about SELECT * FROM about",
    "UPDATE about SET identity = NULL",
    "ALTER TABLE episodes ADD COLUMN more",
    "ALTER TABLE sessions ADD COLUMN more",
]


@pytest.mark.parametrize("statement", FORGED)
def test_a_forged_or_damaged_catalogue_is_one_error_that_says_how_to_make_it_again(
    store, statement
):
    before = read_back(store)
    with closing(sqlite3.connect(store / "catalogue.sqlite")) as forged, forged:
        forged.execute(statement)

    def read():
        summarize_store(store)
        return [*read_episodes(store)]

    acts = read, lambda: StoreWriter(store).close()
    for act in acts["sessions" in statement :]:  # which only a writer reads
        with pytest.raises(StoreError, match=r"(?s)cannot be used.*rebuild=true"):
            act()
    rebuild_catalogue(store)
    assert [rows.tobytes() for _, rows in read_back(store)] == [r.tobytes() for _, r in before]


@pytest.mark.parametrize("name", ["server.lock", "rows", "weights", "catalogue.sqlite-wal"])
def test_a_store_whose_links_lead_out_of_it_is_refused(store, tmp_path, name):
    (tmp_path / "elsewhere").write_text("precious")
    if (store / name).exists():
        (store / name).rename(tmp_path / "before")
    (store / name).symlink_to(tmp_path / "elsewhere")
    for act in (StoreWriter, summarize_store, rebuild_catalogue):
        with pytest.raises(StoreError, match="a place outside of its folder"):
            act(store)
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_nobody_else_writes_a_store_while_its_catalogue_is_made_anew(store, monkeypatch):
    tried = []

    class Watched(Catalogue):
        def take_annotations(self, old):
            with pytest.raises(StoreError, match="another replay server"):
                StoreWriter(store)
            tried.append(old)
            return super().take_annotations(old)

    monkeypatch.setattr(store_module, "Catalogue", Watched)
    rebuild_catalogue(store)
    assert tried
    StoreWriter(store).close()


def test_no_catalogue_is_made_where_there_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="rows of 0 stores"):
        rebuild_catalogue(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_file_that_is_gone_without_an_eviction_is_said(store):
    rows = StoreRows(store)
    assert len(rows.look()) == 5
    rows.rewind()
    first = segments_of(store)[0]
    first.remove()
    with pytest.raises(StoreError, match=r"fewer rows than its catalogue knows.*session \(1, 0\)"):
        rows.look()
    rows.close()
    with pytest.raises(StoreError, match=r"fewer rows than its catalogue knows.*rebuild=true"):
        sampler_of(store)


def test_rows_that_are_lost_are_said_and_never_a_crash(store, schema):
    last = segments_of(store)[-1]
    os.truncate(last.path, last.path.stat().st_size - 2 * schema.dtype.itemsize)
    sampler = sampler_of(store, n_step=1)
    assert numbers(sampler)
    sampler.close()
    os.truncate(last.path, RowFile.open(last.path).header_bytes)
    for open_it in (StoreWriter, lambda path: sampler_of(path)):
        with pytest.raises(StoreError, match="fewer rows than its catalogue knows"):
            open_it(store)
    assert "4 episodes" not in rebuild_catalogue(store)
    assert len(read_back(store)) == 3


@pytest.mark.parametrize("heard", ["of all", "of the begin"])
@pytest.mark.parametrize("kept", [0, 3])
def test_rows_that_are_lost_before_another_file_are_said(
    tmp_path, schema, make_episode, heard, kept
):
    writer = StoreWriter(tmp_path / "store", capacity_rows=96)
    recording = Recording(writer, schema)
    rows = [row for _ in range(3) for row in make_episode(2)]
    recording.put(rows[: kept + 1])
    if heard == "of the begin":  # of the episode that is lost
        writer._catalogue.put_episodes = lambda records: None
    recording.put(rows[kept + 1 :])
    writer.close()
    first, _ = segments_of(writer.path)
    header = RowFile.open(first.path).header_bytes
    os.truncate(first.path, header + kept * schema.dtype.itemsize)
    with pytest.raises(StoreError, match="fewer rows than its catalogue knows"):
        StoreWriter(writer.path)


def test_a_file_of_an_older_version_is_refused(store):
    first = segments_of(store)[0]
    with first.path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 1))
    with pytest.raises(StoreError, match="version 1, where this program has 3"):
        StoreWriter(store)


def test_a_file_of_another_store_is_refused_by_name(store, tmp_path, schema, make_episode):
    other = StoreWriter(tmp_path / "other")
    Recording(other, schema, actor=8).put(make_episode(2))
    other.close()
    (foreign,) = (tmp_path / "other" / "rows").glob("*.rows")
    shutil.copy(foreign, store / "rows")
    with pytest.raises(StoreError, match=rf"{foreign.name} does not belong.*move it out"):
        StoreWriter(store)
    with pytest.raises(StoreError, match="rows of 2 stores"):
        rebuild_catalogue(store)


def test_a_copied_store_is_the_same_store(store, tmp_path):
    shutil.copytree(store, tmp_path / "copy")
    assert_same(read_back(tmp_path / "copy"), read_back(store))
    with StoreReader(store) as one, StoreReader(tmp_path / "copy") as other:
        assert one.identity == other.identity


def test_one_writer_at_a_time(store):
    writer = StoreWriter(store)
    with pytest.raises(StoreError, match="another replay server"):
        StoreWriter(store)
    with pytest.raises(StoreError, match="another replay server"):
        rebuild_catalogue(store)
    writer.close()


def test_weights_that_lost_their_tensors_are_an_error_and_no_crash(store):
    write_weights(store, WeightsRecord("policy", 3, b"tensors", {"a": 1}), flush=False)
    (tensors,) = (store / "weights").glob("*.safetensors")
    tensors.unlink()
    with pytest.raises(StoreError, match=r"policy.*cannot be read.*policy-3\.safetensors"):
        read_weights(store, "policy")


def test_sessions_that_are_closed_take_no_memory_and_are_read_back(tmp_path, schema, make_episode):
    writer = StoreWriter(tmp_path / "store")
    rows = make_episode(3)
    first = Recording(writer, schema, owner="first")
    first.put(rows)
    for number in range(50):
        Recording(writer, schema, owner=f"owner {number}")
    assert len(writer.sessions) == 1
    assert writer.session(first.key).next_sequence == 4
    first.put(rows, first=0)  # they are stored, so nothing is put twice
    with pytest.raises(SessionTaken, match="closed"):
        first.put(make_episode(2))
    with pytest.raises(SessionTaken, match="another writer"):
        Recording(writer, schema, session=first.key[1], owner="somebody")
    writer.close()


def test_a_store_with_a_failed_write_takes_nothing_until_it_is_opened_again(
    tmp_path, schema, make_episode, monkeypatch
):
    writer = StoreWriter(tmp_path / "store")
    recording = Recording(writer, schema, session=0, owner="me")
    first, second = make_episode(4), make_episode(3)
    recording.put(first)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "pwritev", fail)
        with pytest.raises(StoreError, match=r"the server takes no more rows.*Input/output error"):
            recording.put(second)
    for _ in range(2):
        with pytest.raises(StoreError, match="the server takes no more rows") as caught:
            recording.put(second)
        assert len(caught.traceback) <= 3  # it is not the error of before, which would grow
    writer.close()
    writer = StoreWriter(tmp_path / "store")
    Recording(writer, schema, session=0, owner="me").put(second)
    assert [len(rows) for _, rows in read_back(writer.path)] == [5, 4]
    writer.close()


def test_a_file_that_is_evicted_while_a_store_is_summed_up_has_no_size(store, monkeypatch):
    last, stat = segments_of(store)[-1], Path.stat
    whole = summarize_store(store)

    def evict_and_stat(path, **options):
        if path == last.path:
            path.unlink(missing_ok=True)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", evict_and_stat)
    left = summarize_store(store)
    assert {**left, "bytes_per_row": 0, "disk_bytes": 0} == {
        **whole,
        "bytes_per_row": 0,
        "disk_bytes": 0,
    }
    assert left["disk_bytes"] < whole["disk_bytes"]
    assert left["bytes_per_row"] < whole["bytes_per_row"]
