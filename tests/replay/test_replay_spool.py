"""What an actor's rows on disk survive: kills, a server that is away, a store that is another."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import sandbox
from spool_writer import (
    ACTOR,
    ROWS,
    SPOOL_BYTES,
    camera_schema,
    metadata,
    numbered_row,
    open_client,
)
from store_writing import read_back

from robot_rl.data.schema import Field, SchemaMismatch, row_schema
from robot_rl.processes.signals import StopEvent
from robot_rl.replay import SessionTaken, SpoolError, StoreReplaced
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.spool import Spool, size_for
from robot_rl.replay.store_reader import StoreReader
from robot_rl.wire import ServerUnreachable

HERE = Path(__file__).parent
SCHEMA = camera_schema()


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "run" / "spool" / "actor-1.rows"


def stored(store):
    """Return rows by session, and each episode's metadata by session and sequence."""
    sessions, episodes = {}, {}
    for episode, found in read_back(store):
        rows = sessions.setdefault(episode.session, [])
        assert episode.first_sequence == len(rows)
        rows += [row.tobytes() for row in found]
        episodes[episode.session, episode.first_sequence] = episode.metadata
    return sessions, episodes


def check_rows(store, appended):
    """Check that a store holds of each session what `append` returned for and the row in flight.

    Args:
        store: The store.
        appended: Rows for which `append` returned, by session.
    """
    sessions, episodes = stored(store)
    assert sessions.keys() == {session for session, count in appended.items() if count}
    for session, rows in sessions.items():
        assert appended[session] <= len(rows) <= appended[session] + 1
        expected = [SCHEMA.pack(numbered_row(SCHEMA, session, i)) for i in range(len(rows))]
        assert rows == expected
        for first in range(0, len(rows), ROWS):
            assert episodes[session, first] == metadata(session, first)


class Writer:
    """A process that appends until it is killed."""

    def __init__(self, store, spool):
        command = [sys.executable, str(HERE / "spool_writer.py"), str(store), str(spool)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.session, self.rows = int(self._words()[0]), 0

    def append(self, count):
        """Wait for `append` to return so many times."""
        for _ in range(count):
            self.rows = int(self._words()[1]) + 1

    def kill(self):
        """Kill -9 it and take note of what it said before."""
        self.process.send_signal(signal.SIGKILL)
        rest, _ = self.process.communicate()
        if rest:
            self.rows = int(rest.split()[-1]) + 1

    def _words(self):
        words = self.process.stdout.readline().split()
        assert len(words) == 2, "the writer has died"
        return words


def kill_writers(start_server, spool, kills):
    """Kill a writer at random points, with the server running or dead; then check everything."""
    random = np.random.default_rng(kills)
    server = start_server()
    appended = {}
    for number in range(kills):
        writer = Writer(server.store, spool)
        writer.append(int(random.integers(1, 60)))
        if number % 2 == 0:
            server.kill()
        writer.append(int(random.integers(1, 200)))
        writer.kill()
        appended[writer.session] = writer.rows
        if number % 2 == 0:
            server.start()
    with open_client(server.store, spool) as client:
        client.open_session(SCHEMA, ACTOR)
    check_rows(server.store, appended)
    assert len(appended) == kills
    assert not spool.exists()
    return sum(appended.values())


def test_a_killed_actor_loses_at_most_the_step_in_flight(start_server, spool):
    kill_writers(start_server, spool, 3)


@pytest.mark.faults
def test_many_killed_actors_lose_at_most_the_step_in_flight(start_server, spool):
    assert kill_writers(start_server, spool, 16) > 1000


def test_rows_of_an_actor_whose_server_was_dead_are_sent_by_the_next_one(start_server, spool):
    server = start_server()
    first = Writer(server.store, spool)
    server.kill()
    first.append(3 * ROWS + 5)
    first.kill()
    # The next one cannot send them either, and neither loses nor overtakes them.
    client = open_client(server.store, spool)
    waiting = client.unacknowledged
    assert waiting >= 3 * ROWS + 5 - 60  # some may have reached the server before its end
    with pytest.raises(ServerUnreachable, match=rf"{waiting} rows .*kept in the spool {spool}"):
        client.flush(0.3)
    with pytest.raises(ServerUnreachable):
        client.close(0.1)
    # The one after it starts before the server.
    client = open_client(server.store, spool)
    starting = threading.Thread(target=server.start)
    starting.start()
    opened = client.open_session(SCHEMA, ACTOR)
    starting.join()
    assert opened.session == first.session + 1
    for sequence in range(ROWS):
        client.append(
            numbered_row(SCHEMA, opened.session, sequence), metadata(opened.session, sequence)
        )
    client.close()
    check_rows(server.store, {first.session: first.rows, opened.session: ROWS})


def test_a_full_spool_refuses_rows_and_goes_on_where_it_was(start_server, spool):
    server = start_server()
    size = size_for(3 * ROWS + 1, SCHEMA.dtype.itemsize)
    client = ReplayClient(server.store, spool_path=spool, spool_bytes=size, resend_seconds=0.1)
    session = client.open_session(SCHEMA, ACTOR).session
    server.kill()
    for count in range(3 * ROWS):
        assert client.has_room(ROWS - count % ROWS)
        client.append(numbered_row(SCHEMA, session, count), metadata(session, count))
    assert not client.has_room(ROWS)
    while client.problem is None:
        time.sleep(0.01)
    assert "does not answer" in str(client.problem)
    count = 3 * ROWS
    client.append(numbered_row(SCHEMA, session, count), metadata(session, count))
    with pytest.raises(SpoolError, match=rf"40 rows in the spool {spool}.*has_room"):
        client.append(numbered_row(SCHEMA, session, count + 1))
    count += 1
    server.start()
    client.flush(20)
    assert client.problem is None
    while count < 20 * ROWS:  # several times around the file
        if client.has_room(1):
            client.append(numbered_row(SCHEMA, session, count), metadata(session, count))
            count += 1
    client.close()
    check_rows(server.store, {session: count})


def test_rows_are_sent_without_being_asked_for(server, spool):
    with open_client(server.store, spool) as client:
        client.open_session(SCHEMA, ACTOR)
        client.append(numbered_row(SCHEMA, 0, 0))
        with ReplayClient(server.store) as other:
            while other.statistics()["rows"] == 0:
                pass


def left_behind(server, spool, before=0, rows=4):
    """Leave rows of a session in a spool, after some that were sent; return its number."""
    client = ReplayClient(
        server.store, spool_path=spool, spool_bytes=SPOOL_BYTES, resend_seconds=0.1
    )
    opened = client.open_session(SCHEMA, ACTOR)
    for sequence in range(before + rows):
        if sequence == before:
            client.flush(10)
            server.kill()
        client.append(numbered_row(SCHEMA, 0, sequence), metadata(0, sequence))
    with pytest.raises(ServerUnreachable):
        client.close(0.1)
    return opened.session


def test_opening_a_session_waits_as_long_as_old_rows_get_through(start_server, spool, monkeypatch):
    server = start_server(fsync="group")
    number = left_behind(server, spool, rows=60)
    server.start()
    rows_from = Spool.rows_from

    def slowly(*request):
        time.sleep(0.02)  # for each row: longer than a request may take for all together
        return rows_from(*request)

    monkeypatch.setattr(Spool, "rows_from", slowly)
    with ReplayClient(
        server.store,
        spool_path=spool,
        spool_bytes=SPOOL_BYTES,
        request_seconds=1.0,
        batch_rows=1,
        credit_rows=1,
    ) as client:
        assert client.open_session(SCHEMA, ACTOR).session == number + 1
    check_rows(server.store, {number: 60})


def replace_store(server, identity=None):
    """Put an empty store in place of a killed server's, or one of that identity."""
    shutil.rmtree(server.store)
    if identity is not None:
        server.store.mkdir()
        Catalogue(server.store, write=True, identity=identity).close()
    server.start()


def identity_of(store):
    with StoreReader(store) as reader:
        return reader.identity


OTHER_SCHEMA = row_schema("reach", [Field("state/x", "float32", (4,))], ["dx", "dy"], 10.0)


@pytest.mark.parametrize(
    ("reason", "error", "words"),
    [
        ("store", StoreReplaced, "another store"),
        ("schema", SchemaMismatch, "state/x.*"),
        ("owner", SessionTaken, "another writer"),
    ],
)
def test_rows_that_a_store_does_not_take_stay_where_they_are(
    start_server, spool, reason, error, words
):
    server = start_server()
    number = left_behind(server, spool, before=3 if reason == "store" else 0)
    replace_store(server, None if reason == "store" else identity_of(server.store))
    if reason != "store":
        schema = OTHER_SCHEMA if reason == "schema" else SCHEMA
        with ReplayClient(server.store) as client:
            client.open_session(schema, ACTOR, number, owner="somebody else")
    for _ in range(2):
        client = open_client(server.store, spool)
        with pytest.raises(error, match=rf"{words}.*4 rows .* stay in the spool {spool}"):
            client.open_session(SCHEMA, ACTOR)
        with pytest.raises(error):
            client.close()
    spool.rename(spool.with_suffix(".aside"))
    if reason == "store":
        with open_client(server.store, spool) as client:
            client.open_session(SCHEMA, ACTOR)


def test_an_empty_store_in_place_of_another_gets_nothing_and_the_rows_wait_for_theirs(
    start_server, spool, tmp_path
):
    server = start_server()
    identity, former = identity_of(server.store), tmp_path / "former"
    client = open_client(server.store, spool)
    number = client.open_session(SCHEMA, ACTOR).session
    server.kill()
    for sequence in range(4):  # the server knows of none of them
        client.append(numbered_row(SCHEMA, number, sequence), metadata(number, sequence))
    server.store.rename(former)
    server.start()
    assert identity_of(server.store) != identity
    with pytest.raises(StoreReplaced, match=f"another store.*expected: {identity}.*put the former"):
        client.flush(20)
    with pytest.raises(StoreReplaced):
        client.close()
    with StoreReader(server.store) as reader:
        assert reader.empty
    server.kill()
    shutil.rmtree(server.store)
    former.rename(server.store)
    server.start()
    with open_client(server.store, spool) as client:
        client.open_session(SCHEMA, ACTOR)
    check_rows(server.store, {number: 4})


def test_a_client_does_not_begin_a_session_in_another_store_than_before(start_server, spool):
    server = start_server()
    with ReplayClient(server.store, resend_seconds=0.1) as client:
        client.open_session(SCHEMA, ACTOR)
        client.append(numbered_row(SCHEMA, 0, 0))
        client.flush(10)
        server.kill()
        replace_store(server)
        with pytest.raises(StoreReplaced, match="another store"):
            client.open_session(SCHEMA, ACTOR)
        with suppress(StoreReplaced):  # its own thread may have noticed too
            client.close()


def test_a_new_schema_is_refused_only_after_the_old_rows_are_sent(start_server, spool):
    server = start_server()
    number = left_behind(server, spool)
    server.start()
    with open_client(server.store, spool) as client:
        with pytest.raises(SchemaMismatch, match="state/x"):
            client.open_session(OTHER_SCHEMA, ACTOR)
        assert len(stored(server.store)[0][number]) == 4


IN_SANDBOX = """
import os, sys, threading, time
from pathlib import Path
from sandbox import forbid_system_calls
from spool_writer import *

store, spool, more = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
client = open_client(store, spool) if more != "memory" else ReplayClient(store)
client.open_session(camera_schema(), ACTOR)
schema = camera_schema()
rows = [(numbered_row(schema, 0, i), metadata(0, i)) for i in range(15 * ROWS)]
done, for_ever = [], threading.Lock()

def control_loop():
    client.append(*rows[0])
    forbid_system_calls()
    for row in rows[1:]:
        client.append(*row)
    if more == "one more":
        os.getppid()
    done.append(True)
    for_ever.acquire()
    for_ever.acquire()

threading.Thread(target=control_loop, daemon=True).start()
while not done:
    time.sleep(0.01)
client.flush(20)
print(client.statistics()["rows"], flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not sandbox.SUPPORTED, reason="the numbers of system calls are not known")
@pytest.mark.parametrize("what", ["memory", "file", "one more"])
def test_appending_makes_no_system_call(server, spool, what):
    done = subprocess.run(
        [sys.executable, "-c", IN_SANDBOX, str(server.store), str(spool), what],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    if what == "one more":  # the sandbox does what it is for
        assert done.returncode == -signal.SIGSYS
    else:
        assert (done.returncode, done.stdout) == (0, f"{15 * ROWS}\n"), done.stderr


@pytest.mark.parametrize("cycles", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_starting_and_stopping_leaves_no_thread_and_no_file_open(tmp_path, spool, cycles):
    def cycle(index):
        stop = StopEvent()
        server = ReplayServer(tmp_path / f"store{index % 2}")
        thread = threading.Thread(target=server.run, args=(stop,))
        thread.start()
        with (
            ReplayClient(server.address, spool_path=spool, spool_bytes=4 << 20) as client,
            ReplayClient(server.address) as other,
        ):
            for user, actor in ((client, 1), (other, 2)):
                user.open_session(SCHEMA, actor)
                user.append(numbered_row(SCHEMA, 0, 0))
        stop.set()
        thread.join()

    cycle(0)
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    maps = Path("/proc/self/maps").read_text().count("actor-1.rows")
    for index in range(cycles):
        cycle(index)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert threading.active_count() <= threads
    assert Path("/proc/self/maps").read_text().count("actor-1.rows") == maps == 0
