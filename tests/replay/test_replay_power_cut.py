"""A power cut takes back what the disk has not seen: of a store, and of an actor's spool."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spool_writer import ACTOR, camera_schema, metadata, numbered_row, open_client
from store_writing import Recording, read_back

from robot_rl.data.schema import Row, RowSchema
from robot_rl.replay import StoreError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_files import segments_of

SCHEMA = camera_schema()


def append(client: ReplayClient, session: int, begin: int, end: int) -> None:
    for sequence in range(begin, end):
        row = numbered_row(SCHEMA, session, sequence)
        client.append(row, metadata(session, sequence))


def stored_sequences(store: Path) -> list[int]:
    """Sequences in the store, as its rows themselves tell them."""
    return [int(sequence) for _, rows in read_back(store) for sequence in rows["state/x"][:, 1]]


def test_a_spool_that_is_older_than_the_store_does_not_hinder_the_next_actor(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_server(fsync="group")
    spool, on_disk = tmp_path / "actor-1.rows", tmp_path / "on-disk.rows"
    with open_client(server.store, spool) as client:
        number = client.open_session(SCHEMA, ACTOR).session
        append(client, number, 0, 9)
        client.flush(20)
        server.process.send_signal(signal.SIGSTOP)
        append(client, number, 9, 11)
        shutil.copy(spool, on_disk)  # what the system has written by itself when power fails
        server.process.send_signal(signal.SIGCONT)
        append(client, number, 11, 31)
        client.flush(20)
    shutil.copy(on_disk, spool)

    with open_client(server.store, spool) as client:
        assert client.unacknowledged == 2
        client.flush(20)
        server.kill()
        server.start()
        client.statistics()
        time.sleep(0.5)  # the client asks again where the session stands
        assert client.open_session(SCHEMA, ACTOR).session == number + 1
        append(client, number + 1, 0, 3)
    assert stored_sequences(server.store) == [*range(31), *range(3)]
    assert not spool.exists()


def test_all_segments_of_a_commit_are_on_the_disk_when_it_is_acknowledged(
    tmp_path: Path,
    schema: RowSchema,
    make_episode: Callable[..., list[Row]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = StoreWriter(tmp_path / "store", fsync="group", capacity_rows=80)
    recording = Recording(writer, schema)
    wait = os.fdatasync
    on_disk: dict[int, int] = {}

    def note_size(descriptor: int) -> None:
        wait(descriptor)
        on_disk[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", note_size)
    recording.put([row for steps in (4, 4, 2) for row in make_episode(steps)])
    files = [segment.path.stat() for segment in segments_of(writer.path)]
    assert len(files) == 3
    assert [on_disk.get(file.st_ino) for file in files] == [file.st_size for file in files]
    writer.close()


def test_nothing_is_accepted_once_the_disk_failed_on_a_full_segment(
    tmp_path: Path,
    schema: RowSchema,
    make_episode: Callable[..., list[Row]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = StoreWriter(tmp_path / "store", fsync="group", capacity_rows=80)
    recording = Recording(writer, schema)
    rows = [row for steps in (4, 4) for row in make_episode(steps)]
    wait = os.fdatasync

    def fail_once(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", wait)
        (first,) = segments_of(writer.path)  # the next one is not begun yet
        assert os.path.samestat(os.fstat(descriptor), first.path.stat())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # The facts of episodes without metadata are an empty file, which is waited for before.
    monkeypatch.setattr(os, "fdatasync", lambda file: os.fstat(file).st_size and fail_once(file))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"the disk of the store .* takes no more rows"):
            recording.put(rows)
    writer.close()
