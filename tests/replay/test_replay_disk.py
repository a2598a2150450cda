"""Disks that take no more, and files that are moved while they are used."""

import errno
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from store_writing import read_back

from robot_rl.processes.waiting import wait_until
from robot_rl.replay import SpoolError, StoreError, StoreFull
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.row_file import write_error
from robot_rl.replay.store_reader import summarize_store

TOLD_SECONDS = 10.0  # on a busy machine


def stored_rows(store):
    return [row.tobytes() for _, rows in read_back(store) for row in rows]


def files_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EDQUOT, StoreFull, "quota.*next: free some space of this user"),
        (errno.EFBIG, StoreFull, "next: free some space.*ulimit -f"),
        (errno.EMFILE, StoreFull, "too many files are open.*ulimit -n"),
        (errno.ENOMEM, StoreFull, "no memory left"),
        (errno.EROFS, StoreError, "mounted read-only.*next: mount it"),
        (errno.EACCES, StoreError, "this user may not write there"),
        (errno.ENOENT, StoreError, "its folder is not there.*moved or removed"),
        (errno.EIO, StoreError, "next: see that.*its disk is sound"),
    ],
)
def test_each_reason_is_said_with_its_way_out(tmp_path, number, kind, words):
    error = write_error(OSError(number, os.strerror(number)), tmp_path)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


def test_a_disk_without_inodes_is_no_full_disk(start_server, small_disk, schema, make_episode):
    disk = small_disk("24m,nr_inodes=40")
    server = start_server(disk / "store")
    sent = make_episode(5)
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        files = []
        with suppress(OSError):
            for number in range(100):
                (disk / f"{number}").touch()
                files.append(disk / f"{number}")
        client.append_episode(sent)
        with pytest.raises(StoreFull, match=r"no inodes left.* 0 of 40 inodes.*next: delete files"):
            client.flush(1)
        for file in files:
            file.unlink()
        client.flush(20)
    assert stored_rows(server.store) == [schema.pack(row) for row in sent]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_store_can_be_looked_at_where_nothing_can_be_written(
    start_server, small_disk, schema, make_episode, killed, how
):
    disk = small_disk("24m")
    server = start_server(disk / "store")
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        client.append_episode(make_episode(5))
        client.flush(10)
    if killed:  # and then the catalogue has a log beside it
        server.kill()
    else:
        server.stop()
    if how == "full":
        with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = files_of(server.store)
    table = summarize_store(server.store)
    assert (table["episodes"], table["steps"], table["missing_rows"]) == (1, 5, {})
    assert files_of(server.store) == before


def test_a_store_that_is_moved_while_it_is_served_is_said_at_once(
    start_server, schema, make_episode, tmp_path, capfd
):
    server, sent = start_server(), []
    client = ReplayClient(server.store)
    client.open_session(schema)
    sent += make_episode(5)
    client.append_episode(sent)
    client.flush(10)
    moved = tmp_path / "moved"
    server.store.rename(moved)
    assert wait_until(lambda: server.process.poll() is not None, TOLD_SECONDS)
    assert "was moved, removed or replaced while it was served" in capfd.readouterr().err
    more = make_episode(5)
    client.append_episode(more)
    moved.rename(server.store)
    server.start()
    client.flush(20)
    client.close()
    assert stored_rows(server.store) == [schema.pack(row) for row in (*sent, *more)]


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_spool_that_is_moved_while_it_is_used_is_said_at_once(server, schema, tmp_path, how):
    spool = tmp_path / "spools" / "actor"
    client = ReplayClient(server.store, spool_path=spool)
    client.open_session(schema)
    time.sleep(0.1)
    if how == "moved":
        spool.parent.rename(tmp_path / "elsewhere")
    else:
        spool.unlink()
    if how == "replaced":
        Path(spool).write_bytes(b"")

    def told():
        try:
            client.has_room(1)
        except SpoolError as error:
            return error
        return None

    assert "moved, removed or replaced" in str(wait_until(told, TOLD_SECONDS))
    with pytest.raises(SpoolError):
        client.close()
