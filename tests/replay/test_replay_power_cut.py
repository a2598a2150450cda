"""What an actor's spool does after a power cut, which takes back what the disk has not seen."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spool_writer import ACTOR, camera_schema, metadata, numbered_row, open_client

from robot_rl.replay import ReplayClient, StoreReader

SCHEMA = camera_schema()


def append(client: ReplayClient, session: int, begin: int, end: int) -> None:
    for sequence in range(begin, end):
        row = numbered_row(SCHEMA, session, sequence)
        client.append(row, metadata(session, sequence))


def stored_sequences(store: Path) -> list[int]:
    """Sequences in the store, as its rows themselves tell them."""
    reader = StoreReader(store)
    rows = [reader.read_episode("reach", episode) for episode in reader.episodes("reach")]
    reader.close()
    return [int(sequence) for episode in rows for sequence in episode["state/x"][:, 1]]


def test_a_spool_that_is_older_than_the_store_does_not_hinder_the_next_actor(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_server(fsync="group")
    spool, on_disk = tmp_path / "actor-1.rows", tmp_path / "on-disk.rows"
    with open_client(server.store, spool) as client:
        number = client.open_session("reach", SCHEMA, ACTOR).number
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
        server.start()  # the client asks again where the session stands
        deadline = time.monotonic() + 20
        while client.statistics()["uptime_seconds"] < 0.5:
            assert time.monotonic() < deadline
        assert client.open_session("reach", SCHEMA, ACTOR).number == number + 1
        append(client, number + 1, 0, 3)
    assert stored_sequences(server.store) == [*range(31), *range(3)]
    assert not spool.exists()
